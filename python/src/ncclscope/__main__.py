# SPDX-License-Identifier: Apache-2.0
"""``python -m ncclscope``: prints the paths of plugin and tool, and the variables for NCCL.

``python -m ncclscope VERB ...`` runs the tool, as the command ``ncclscope VERB ...`` does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Optional

from ._plugin import Error, chain, plugin_path, variables
from ._tool import packaged, tool_path


def main() -> int:
    words = sys.argv[1:]
    if words and not words[0].startswith("-"):
        return run_tool(None, words)
    parser = argparse.ArgumentParser(prog="python -m ncclscope", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plugin-path", action="store_true", help="print the plugin's path")
    what.add_argument("--tool-path", action="store_true", help="print the path of the tool")
    what.add_argument("--env", action="store_true", help="print export lines for a shell")
    parser.add_argument("-o", "--output", metavar="DIR", help="--env: directory of the recordings")
    args = parser.parse_args()
    if args.output is not None and not args.env:
        parser.error("-o needs --env")
    try:
        if args.tool_path:
            print(tool_path(str(plugin_path())))
        elif args.plugin_path:
            print(plugin_path())
        else:
            print_environment(args.output)
    except Error as error:
        print(f"ncclscope: {error}", file=sys.stderr)
        return 4
    return 0


def command() -> int:
    """The command ``ncclscope``. Its tool finds the plugin itself."""
    return run_tool(packaged(), sys.argv[1:])


def run_tool(tool: Optional[Path], words: list[str]) -> int:
    """Becomes the tool, by default that of the plugin."""
    try:
        tool = tool or tool_path(str(plugin_path()))
        # Python ignores these signals, and a program that it executes inherits this.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.execv(tool, [str(tool), *words])
    except Error as error:
        print(f"ncclscope: {error}", file=sys.stderr)
    except OSError as error:
        print(f"ncclscope: cannot run {tool}: {error}", file=sys.stderr)
    return 4


def print_environment(output: Optional[str]) -> None:
    """Prints lines for a shell, which may run on another machine and keeps its own loader path."""
    kept = chain()
    for name, value in {**variables(before=""), **kept}.items():
        rest = f'"${{{name}:+:${name}}}"' if name == "LD_LIBRARY_PATH" else ""
        print(f"export {name}={shlex.quote(value)}{rest}")
    for other in kept.values():
        text = f"NCCL_PROFILER_PLUGIN names {other}: it gets every callback too (NCCLSCOPE_CHAIN)"
        print(f"ncclscope: {text}", file=sys.stderr)
    if output is not None:
        os.makedirs(output, exist_ok=True)
        print(f"export NCCLSCOPE_DIR={shlex.quote(os.path.abspath(output))}")


if __name__ == "__main__":
    sys.exit(main())
