"""A real PgBouncer in front of a server of the tests, as companies run it."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SETTINGS = """
[databases]
* = host={server} user=postgres
[pgbouncer]
pool_mode = transaction
auth_type = any
unix_socket_dir = {folder}
listen_addr =
listen_port = 5432
logfile = {folder}/log
default_pool_size = 2
server_login_retry = 0.1
"""


@contextmanager
def pgbouncer(url: str, user: str | None) -> Generator[str]:
    """Run PgBouncer in transaction mode before a server, and yield the URL of the same database behind it."""
    assert PROGRAM is not None
    folder = Path(mkdtemp(prefix="holdfast-pgb-"))
    server, _, socket_folder = url.partition("?host=")
    settings = folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(server=socket_folder, folder=folder))
    if user:
        shutil.chown(folder, user)
        settings.chmod(0o644)
    process = subprocess.Popen([PROGRAM, "-q", str(settings)], user=user, stderr=subprocess.DEVNULL)
    try:
        while not (folder / ".s.PGSQL.5432").exists():
            assert process.poll() is None, (folder / "log").read_text()
        yield f"{server}?host={quote(str(folder), safe='/')}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
