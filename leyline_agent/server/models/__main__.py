"""Build (or find) one named model and print its folder as the last line."""

import sys

from leyline_agent.server.models import build, names


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in names():
        print(f"usage: python -m leyline_agent.server.models {{{','.join(names())}}}")
        return 2
    print(build(sys.argv[1], progress=lambda line: print(line, file=sys.stderr, flush=True)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
