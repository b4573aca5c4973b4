"""An MCP server over stdio, whose tools return each kind of result: a text, an image, a table and an error."""

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc00000030101"
    "00c9fe92ef0000000049454e44ae426082"
)
"""One red pixel."""
TABLE: dict[str, Any] = {"place": "Kiel", "high": ["12:40", "00:58"], "meters": 3.2}


def serve() -> None:
    """Serve until the client closes its end."""
    server = MCPServer("tides", log_level="CRITICAL")

    @server.tool()
    def words(place: str) -> str:
        """Return the tide as text."""
        return f"High water at {place} is 12:40."

    @server.tool()
    def chart(place: str) -> Image:
        """Return a chart of the tide."""
        del place
        return Image(data=PNG, format="png")

    @server.tool()
    def table(place: str) -> dict[str, Any]:
        """Return the tide as a table."""
        return {**TABLE, "place": place}

    @server.tool()
    def broken(place: str) -> str:
        """Fail."""
        raise ValueError(place)

    server.run("stdio")


if __name__ == "__main__":
    serve()
