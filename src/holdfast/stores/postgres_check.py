"""What an operator should know about a PostgreSQL server that keeps sessions: for `holdfast doctor --store`."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.errors import StoreUnavailableError
from holdfast.stores.postgres import POSTGRES_TABLES
from holdfast.stores.postgres_pool import (
    POSTGRES_INDEXES,
    SERVER_IS_READ_ONLY,
    USE_PRIMARY,
    PostgresPool,
    as_postgres_store_error,
    missing_indexes,
    psycopg,
)

CheckState: TypeAlias = Literal["ok", "warn", "fail"]
UNICODE_ENCODINGS = ("UTF8", "SQL_ASCII")
"""The encodings of databases that can hold every text; the second one stores bytes as they come."""
MIN_SERVER_VERSION = 140_000
"""Older servers get no updates any more."""
MAX_TRANSACTION_SECONDS = 600
MAX_DEAD_SHARE, MIN_DEAD_ROWS = 0.3, 10_000
MIN_FREE_CONNECTIONS = 8
MAX_COUNTED_SESSIONS = 10_000
"""More sessions are not counted: the server's estimate is shown, which a new or small table may not have yet."""
UNSEEN_TRANSACTIONS = "the transactions of other roles cannot be seen, so that an old one among them is not found"
FACTS = """
    SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_backend_pid(),
        current_user::text, current_setting('default_transaction_isolation'), current_setting('synchronous_commit'),
        current_setting('max_connections')::int,
        (SELECT count(*) FROM pg_stat_activity
            WHERE coalesce(backend_type, 'client backend') = 'client backend' AND usesysid IS NOT NULL
                AND datid IS NOT NULL),
        (SELECT sum(pg_total_relation_size(one))::bigint FROM unnest(%s::regclass[]) AS one),
        (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'),
        (SELECT reltuples::bigint FROM pg_class WHERE oid = 'holdfast.sessions'::regclass),
        current_setting('transaction_read_only'), current_setting('server_encoding'),
        (SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type IS NULL AND usesysid IS NOT NULL)
"""
RIGHTS = """
    SELECT one FROM unnest(%s::text[]) AS one, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS kind
    WHERE NOT has_table_privilege(one, kind) GROUP BY one
"""
COUNT = "SELECT count(*) FROM (SELECT FROM holdfast.sessions LIMIT %s) AS first_ones"
DEAD_ROWS = """
    SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE schemaname = 'holdfast' AND n_dead_tup >= %s AND n_dead_tup > %s * n_live_tup ORDER BY n_dead_tup DESC
"""


class StoreFinding(NamedTuple):
    """What was found, whether it is well, and what to do about it."""

    state: CheckState
    said: str
    remedy: str = ""


async def check_postgres(url: str) -> list[StoreFinding]:
    """Return what is to be known about a server: version, pooler, rights, settings, connections, indexes and bloat."""
    pool = PostgresPool(url, builds_indexes=False)
    try:
        async with pool.connection() as connection:
            facts = await (await connection.execute(FACTS.encode(), (list(POSTGRES_TABLES),))).fetchone()
            denied = await (await connection.execute(RIGHTS.encode(), (list(POSTGRES_TABLES),))).fetchall()
            dead = await (await connection.execute(DEAD_ROWS.encode(), (MIN_DEAD_ROWS, MAX_DEAD_SHARE))).fetchall()
            server = _ServerFacts(*facts or ())
            if not denied:
                row = await (await connection.execute(COUNT.encode(), (MAX_COUNTED_SESSIONS,))).fetchone()
                server = server._replace(counted=row[0] if row else 0)
            return [
                *_about_server(server, is_pooled=server.process != connection.info.backend_pid),
                *_about_tables(server, [table for (table,) in denied], await missing_indexes(connection), dead),
            ]
    except psycopg.Error as error:
        return [StoreFinding("fail", str(as_postgres_store_error(error)))]
    except StoreUnavailableError as error:
        return [StoreFinding("fail", str(error))]
    finally:
        await pool.close()


class _ServerFacts(NamedTuple):
    """The columns of `FACTS`."""

    number: int
    version: str
    process: int
    role: str
    isolation: str
    commit: str
    max_connections: int
    connections: int
    size: int
    oldest_seconds: float | None
    sessions: int
    """As the server estimates."""
    read_only: str
    encoding: str
    unseen: int = 0
    """How many connections of other roles this one may know nothing about but that they exist."""
    counted: int | None = None
    """As they were counted, up to a limit; None if this role may not."""


def _about_server(server: _ServerFacts, *, is_pooled: bool) -> Iterator[StoreFinding]:
    is_current = server.number >= MIN_SERVER_VERSION
    how = "through a pooler" if is_pooled else "directly"
    count, about = server.counted, ""
    if count is None or count >= MAX_COUNTED_SESSIONS:
        count, about = max(server.sessions, count or 0), "about "
    held = f"{server.size / 1e6:,.1f} MB, {about}{count:,} session{'' if count == 1 else 's'}"
    said = f"PostgreSQL {server.version}, {how}, as {server.role}; {held}"
    yield StoreFinding("ok" if is_current else "warn", said, "" if is_current else "update the server to 14 or newer")
    if server.read_only == "on":
        yield StoreFinding("fail", SERVER_IS_READ_ONLY, USE_PRIMARY)
    if server.encoding not in UNICODE_ENCODINGS:
        said = f"the database has the encoding {server.encoding}, which cannot hold every text"
        yield StoreFinding(
            "fail", said, "create one with ENCODING 'UTF8' TEMPLATE template0, and move the sessions there"
        )
    weak = {
        "default_transaction_isolation": (server.isolation != "read committed", "'read committed'"),
        "synchronous_commit": (server.commit == "off", "on"),
    }
    settings = {name: value for name, (is_weak, value) in weak.items() if is_weak}
    if settings and is_pooled:
        orders = "; ".join(f"ALTER ROLE {server.role} SET {name} = {value}" for name, value in settings.items())
        said = f"behind a pooler each statement sets {', '.join(settings)} again, which takes three more round trips"
        yield StoreFinding("warn", said, f"to save them: {orders}")
    if server.max_connections - server.connections < MIN_FREE_CONNECTIONS:
        said = f"{server.connections:,} of {server.max_connections:,} connections are in use"
        yield StoreFinding("warn", said, "raise max_connections, or put PgBouncer in front")
    if (server.oldest_seconds or 0) > MAX_TRANSACTION_SECONDS:
        said = f"a transaction is open for {server.oldest_seconds or 0:,.0f} s, and nothing deleted since can be reused"
        yield StoreFinding("warn", said, "end it: see pg_stat_activity")
    elif server.unseen:
        yield StoreFinding("ok", UNSEEN_TRANSACTIONS, f"to see them: GRANT pg_read_all_stats TO {server.role}")


def _building(index: str) -> str:
    """Return the statements that build an index in any time; a build that was interrupted leaves an index of no use."""
    dropping = f"DROP INDEX CONCURRENTLY IF EXISTS holdfast.{index}"
    return f"{dropping}; CREATE INDEX CONCURRENTLY {index} ON {POSTGRES_INDEXES[index]}"


def _about_tables(
    server: _ServerFacts, denied: Sequence[str], indexes: Sequence[str], dead: Sequence[tuple[object, ...]]
) -> Iterator[StoreFinding]:
    if denied:
        remedy = (
            f"as their owner: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {server.role}"
        )
        yield StoreFinding("fail", f"{server.role} may not read and write {', '.join(denied)}", remedy)
    if indexes:
        said = f"the indexes {', '.join(indexes)} are missing, so that large stores are slower"
        yield StoreFinding("warn", said, f"run as the owner of the tables: {'; '.join(map(_building, indexes))}")
    for table, rows, live in dead:
        said = f"holdfast.{table} has {rows:,} deleted rows beside {live:,}"
        yield StoreFinding("warn", said, f"run VACUUM holdfast.{table}, and see why autovacuum does not")
