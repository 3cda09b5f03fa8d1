# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs for the site: pages of the repository's root become pages of the site.

A link to a source file or a folder, of which the site has none, keeps only its text. A link to a file
that the repository does not have is an error.
"""

import os
import posixpath
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT_PAGES = ["ARCHITECTURE.md", "SPECIFICATION.md", "CONTRIBUTING.md", "CHANGELOG.md"]
FOLDER = "project"
# An image is no link: its file is in docs/.
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files, config):
    for name in ROOT_PAGES:
        path = os.path.join(os.path.dirname(config.config_file_path), name)
        files.append(File.generated(config, f"{FOLDER}/{name}", abs_src_path=path))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    is_root_page = uri.startswith(f"{FOLDER}/")
    source = posixpath.basename(uri) if is_root_page else f"docs/{uri}"
    root = os.path.dirname(config.config_file_path)

    def link(match):
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match.group()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not os.path.exists(os.path.join(root, path)):
            raise PluginError(f"{source} links to {path}, which does not exist")
        if path in ROOT_PAGES:
            path = f"docs/{FOLDER}/{path}"
        elif not path.startswith("docs/") or os.path.isdir(os.path.join(root, path)):
            return text
        relative = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    # Code is left as it is.
    parts = re.split(r"(^ *```.*?^ *```$|`[^`\n]*`(?!\]\())", markdown, flags=re.S | re.M)
    return "".join(LINK.sub(link, part) if i % 2 == 0 else part for i, part in enumerate(parts))
