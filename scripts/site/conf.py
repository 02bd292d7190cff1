"""The site of the docs, for Sphinx: make site. The pages are those of docs/, as they are.

The menu is the map, docs/README.md: its headings, and the pages that each one links to.
A link that leaves docs/ leads to the file in the repository.
"""

import os
import re

project = "weir"
author = "the authors of weir"
html_title = "weir"
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
extensions = ["myst_parser"]
root_doc = "README"
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]

TREE = "https://github.com/weir-go/weir/blob/main/"


def menu(text):
    """The menu of the map: a tree for each of its headings."""
    out = []
    for part in text.split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        pages = re.findall(r"\]\(([\w/.-]+)\.md\)", rest)
        out += ["", "```{toctree}", ":hidden:", ":caption: " + title, *dict.fromkeys(pages), "```"]
    return "\n".join(out) + "\n"


def read(app, page, source):
    """Changes a page as it is read."""
    here = os.path.dirname(page)

    def leave(m):
        path = os.path.normpath(os.path.join("docs", here, m[1]))
        return m[0] if path.startswith("docs/") else "](" + TREE + path + (m[2] or "") + ")"

    text = re.sub(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)", leave, source[0])
    if page == root_doc:
        text += menu(text)
    source[0] = text


def setup(app):
    app.connect("source-read", read)
