"""How Sphinx builds the documentation: `make docs`.

Warnings are errors, so a link that leads nowhere inside the documentation stops the build. What can be read from the
code is read from it before each build (`scripts.reference`). Nothing is loaded from the network, and the search runs
in the reader's browser, so the pages also work from a folder.
"""

import importlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from holdfast import __version__  # noqa: E402 - found in the folder above
from scripts.reference import write_reference  # noqa: E402 - as above

_PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

write_reference(HERE / "_generated")


class _NotInstalled(ModuleType):
    """Stands for the Claude Agent SDK, whose program takes 350 MB: the pages need only the names of its types."""

    __path__ = ()

    def __getattr__(self, name: str) -> type:
        return type(name, (), {})


for _module in ("claude_agent_sdk", "claude_agent_sdk.types"):
    sys.modules.setdefault(_module, _NotInstalled(_module))
for _framework in ("claude_agent_sdk", "google_adk", "langchain", "openai_agents", "pydantic_ai"):
    # Autodoc would import them as a type checker does, which their own imports do not survive.
    importlib.import_module(f"holdfast.adapters.{_framework}")

project = "Holdfast"
author = "The Holdfast maintainers"
copyright = author  # noqa: A001 - Sphinx's name for it
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_generated", "_build"]
default_role = "literal"  # docstrings are written with single backticks

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
myst_substitutions = {"version": release, "distribution": _PROJECT["name"]}

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Holdfast {release}"
html_static_path = ["_static"]
html_css_files = ["holdfast.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6b6b", "color-brand-content": "#0b6b6b"},
    "dark_css_variables": {"color-brand-primary": "#4fc3b8", "color-brand-content": "#4fc3b8"},
}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
