"""A server of the Model Context Protocol with one tool, for the tests."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("tides")


@server.tool()
def high_water(port: str) -> str:
    """Return when the tide is high in a port."""
    return f"high water at {port}: 04:12"


if __name__ == "__main__":
    server.run()
