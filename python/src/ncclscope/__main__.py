# SPDX-License-Identifier: Apache-2.0
"""``python -m ncclscope``: where the plugin and the tool are, and how NCCL finds the plugin."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from ._plugin import Error, plugin_path
from ._tool import tool_path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ncclscope", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plugin-path", action="store_true", help="print the plugin's path")
    what.add_argument("--tool-path", action="store_true", help="print the path of the tool")
    what.add_argument("--env", action="store_true", help="print export lines for a shell")
    parser.add_argument("-o", "--output", metavar="DIR", help="--env: where recordings go")
    args = parser.parse_args()
    if args.output is not None and not args.env:
        parser.error("-o is for --env")
    try:
        path = plugin_path()
        if args.tool_path:
            path = tool_path(str(path))
    except Error as error:
        print(f"ncclscope: {error}", file=sys.stderr)
        return 4
    if args.plugin_path or args.tool_path:
        print(path)
        return 0
    print(f"export NCCL_PROFILER_PLUGIN={shlex.quote(str(path))}")
    if args.output is not None:
        os.makedirs(args.output, exist_ok=True)
        print(f"export NCCLSCOPE_DIR={shlex.quote(os.path.abspath(args.output))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
