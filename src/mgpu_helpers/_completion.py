"""Print what lets bash and zsh complete the commands of `mgpu`, their options, and files.

Put this into ~/.bashrc or ~/.zshrc:

  eval "$(mgpu completion)"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# A command's own help is asked for its options, so that they are never others.
SCRIPT = """\
[ -n "${ZSH_VERSION-}" ] && autoload -U +X compinit bashcompinit && compinit -u && bashcompinit
_mgpu() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} offered=
    if [ "$COMP_CWORD" = 1 ]; then
        offered="COMMANDS --help --json --version"
    elif [ "${word#-}" != "$word" ]; then
        case " COMMANDS " in *" $command "*)
            offered=$(mgpu "$command" --help | grep -oE -- '--[a-z][a-z-]*' | sort -u) ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
    [ "$COMP_CWORD" = 1 ] && COMPREPLY+=($(compgen -f -X '!*.py' -- "$word"))
}
complete -o default -F _mgpu mgpu
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Print the script for the shell; return the exit status."""
    from mgpu_helpers.__main__ import COMMANDS

    parser = argparse.ArgumentParser(
        called, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    print(SCRIPT.replace("COMMANDS", " ".join(COMMANDS)), end="")
    return 0
