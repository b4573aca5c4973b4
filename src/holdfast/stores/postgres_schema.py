"""The tables in PostgreSQL, their migrations, the search query, and what the server's errors mean.

The search adds up PostgreSQL's own rank of each term, weighted by how rare the term is.
"""

from holdfast.errors import StoreUnavailableError
from holdfast.stores.search_terms import SearchTerm

try:
    import psycopg
    from psycopg.rows import TupleRow
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("PostgreSQL needs a driver: pip install '.[postgres]' in Holdfast's folder") from error

POSTGRES_LABEL = "postgresql"
MIGRATION_LOCK = 0x686F6C64
"""The key of the advisory lock that makes the migrations of several machines wait for each other."""
UNREACHABLE_STATES = ("08", "57P", "53300")
"""The prefixes of the codes for a server that is unreachable, shutting down, or out of connections."""
POSTGRES_MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE holdfast.sessions (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL DEFAULT '',
        length BIGINT NOT NULL DEFAULT 0,
        created_ms BIGINT NOT NULL,
        updated_ms BIGINT NOT NULL
    );
    CREATE INDEX sessions_by_change ON holdfast.sessions (updated_ms, id);
    CREATE TABLE holdfast.events (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        position BIGINT NOT NULL,
        time_ms BIGINT NOT NULL,
        data BYTEA NOT NULL,
        PRIMARY KEY (session, position)
    );
    CREATE TABLE holdfast.blobs (digest TEXT PRIMARY KEY, data BYTEA NOT NULL);
    CREATE TABLE holdfast.blob_uses (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        digest TEXT NOT NULL,
        PRIMARY KEY (session, digest)
    );
    CREATE INDEX blob_uses_by_digest ON holdfast.blob_uses (digest);
    CREATE TABLE holdfast.snapshots (
        session BIGINT PRIMARY KEY REFERENCES holdfast.sessions ON DELETE CASCADE,
        length BIGINT NOT NULL,
        data BYTEA NOT NULL
    );
    CREATE TABLE holdfast.facts (key TEXT PRIMARY KEY, value BYTEA NOT NULL);
    CREATE TABLE holdfast.words (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        position BIGINT NOT NULL,
        body TSVECTOR NOT NULL,
        PRIMARY KEY (session, position)
    );
    CREATE INDEX words_by_body ON holdfast.words USING GIN (body);
    """,
)


async def migrate_postgres(connection: "psycopg.AsyncConnection[TupleRow]") -> None:
    """Bring the tables up to date; of several processes that open a new database at once, one does it."""
    async with connection.transaction(), connection.cursor() as cursor:
        await cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        await cursor.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        await cursor.execute("CREATE TABLE IF NOT EXISTS holdfast.schema (version INTEGER NOT NULL)")
        await cursor.execute("SELECT version FROM holdfast.schema")
        row = await cursor.fetchone()
        version = row[0] if row else 0
        if version > len(POSTGRES_MIGRATIONS):
            raise StoreUnavailableError(POSTGRES_LABEL, "it was written by a newer Holdfast; update Holdfast")
        for migration in POSTGRES_MIGRATIONS[version:]:
            await cursor.execute(migration.encode())
        if version < len(POSTGRES_MIGRATIONS):
            await cursor.execute("DELETE FROM holdfast.schema")
            await cursor.execute("INSERT INTO holdfast.schema (version) VALUES (%s)", (len(POSTGRES_MIGRATIONS),))


def as_postgres_store_error(error: "psycopg.Error") -> StoreUnavailableError:
    """Return a driver's error as a `StoreUnavailableError`, never with the password in it."""
    state = error.sqlstate or ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state.startswith("28") or "password authentication failed" in first:
        return StoreUnavailableError(POSTGRES_LABEL, "user or password is wrong; check the URL")
    if state == "53100":
        return StoreUnavailableError(POSTGRES_LABEL, "the disk of the server is full; free some space and try again")
    if state == "3D000" or ("FATAL" in first and 'database "' in first and "does not exist" in first):
        return StoreUnavailableError(POSTGRES_LABEL, "there is no such database; create it, or check the URL")
    if isinstance(error, psycopg.OperationalError) and (not state or state.startswith(UNREACHABLE_STATES)):
        return StoreUnavailableError(
            POSTGRES_LABEL, f"the server cannot be reached ({first}); try again when it is available"
        )
    return StoreUnavailableError(POSTGRES_LABEL, f"the server says: {first}")


MAX_POSITION = 2**62
POSTGRES_SEARCH = """
    WITH asked AS (
        SELECT number, to_tsquery('simple', term) AS query
        FROM unnest(%s::text[]) WITH ORDINALITY AS given (term, number)
    ), held AS (
        SELECT id, position, asked.number AS term, ts_rank(body, query, 1) AS fit
        FROM asked
        JOIN holdfast.words ON body @@ query
        JOIN holdfast.sessions ON sessions.number = session
        WHERE (%s::text IS NULL OR id = %s) AND position >= %s AND position < %s
    ), weights AS (
        SELECT term, power(ln(1 + said.total / (count(*) + 0.5)), 1.5) AS weight
        FROM held, (SELECT sum(length) AS total FROM holdfast.sessions WHERE %s::text IS NULL OR id = %s) AS said
        GROUP BY term, said.total
    )
    SELECT id, position, sum(fit * weight)::float8 AS score FROM held JOIN weights USING (term)
    GROUP BY id, position ORDER BY score DESC, position DESC LIMIT %s
"""
"""Parameters: the terms, a session twice, two positions, the session twice again, a limit."""


def to_tsquery(term: SearchTerm) -> str:
    """Return a term in the syntax of `to_tsquery`."""
    return " <-> ".join(f"'{word}'" for word in term.words) + (":*" if term.is_stem else "")
