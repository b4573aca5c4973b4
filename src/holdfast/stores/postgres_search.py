"""How PostgreSQL is asked for words: its own rank of each, weighed by how few messages hold it."""

from holdfast.stores.terms import SearchTerm

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
"""Takes the terms, a session twice, two positions, the session twice more, and a limit."""


def to_tsquery(term: SearchTerm) -> str:
    """Return a term as PostgreSQL reads it."""
    return " <-> ".join(f"'{word}'" for word in term.words) + (":*" if term.is_stem else "")
