"""`rallypoint completion`: a script that lets a shell complete commands, options and file names.

The script is written from the argument parser itself, so it is complete by construction and needs no package of its own.
zsh runs the same script through its emulation of bash's completion.
"""

from __future__ import annotations

import argparse
import shlex

from rallypoint.cli.parser import Parser, option_strings

HELP = "print a script that lets bash or zsh complete commands and options"
SHELLS = ("bash", "zsh")

_FOR_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_SCRIPT = """\
_rallypoint() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} word command=
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
            -*) ;;
            *) command=$word; break ;;
        esac
    done
    COMPREPLY=()
    case $previous in
        {file_options})
            COMPREPLY=($(compgen -f -- "$current")); return ;;
        {value_options})
            return ;;
    esac
    case $command in
{cases}
    esac
}}
complete -o filenames -F _rallypoint rallypoint
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")
    parser.epilog = 'To use it now: eval "$(rallypoint completion bash)". To keep it, add that line to ~/.bashrc.'


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from rallypoint.cli import COMMANDS

    print((_FOR_ZSH if args.shell == "zsh" else "") + script(Parser(COMMANDS)), end="")
    return 0


def script(parser: Parser) -> str:
    """The script for bash."""
    files: set[str] = set()
    values: set[str] = set()
    words = {"''": [*parser.by_command, *option_strings(parser.top)]}
    for name, command in parser.by_command.items():
        options = option_strings(command)
        for option, action in options.items():
            if action.nargs != 0:
                (files if action.metavar == "FILE" else values).add(option)
        choices = [str(choice) for action in command._actions for choice in action.choices or ()]  # noqa: SLF001
        words[name] = [*choices, *options]
    cases = [
        f'        {command}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(offered))} -- "$current")) ;;'
        for command, offered in words.items()
    ]
    return _SCRIPT.format(
        file_options="|".join(sorted(files)), value_options="|".join(sorted(values)), cases="\n".join(cases)
    )
