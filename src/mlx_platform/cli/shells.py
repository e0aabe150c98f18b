"""The shells' side of completion: what they call with, what they read, and the scripts for bash, zsh, fish.

Every word that reaches a shell is made of letters, digits and a few marks that mean nothing to it. The
scripts read the answer into variables; no part of it is ever evaluated.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

SHELLS = ("bash", "zsh", "fish")
_HARMLESS = re.compile(r"[A-Za-z0-9._@/~:=+%,-]{1,300}")
_HELP_WIDTH = 80
_ANCESTORS = 8  # processes between a shell and mlx: wrappers such as uv run, make or sudo
_MENU = {"37", "42"}  # kinds of completion in bash that insert a proposal as it is printed


@frozen
class Answer:
    """Proposals with their meaning; whether files can stand there too, and whether a proposal goes on."""

    proposals: tuple[tuple[str, str], ...] = ()
    files: bool = False
    partial: bool = False

    def behind(self, head: str) -> "Answer":
        """The same behind the `--option=` that was typed."""
        return Answer(tuple((head + word, meaning) for word, meaning in self.proposals), self.files, False)


def typed_words(
    shell: str, environment: Mapping[str, str], arguments: Sequence[str]
) -> tuple[list[str], str, int]:
    """What was typed after `mlx`.

    Returns:
        The words before the one at the cursor; that word up to the cursor; and how many of its characters
        the shell keeps to itself, since it breaks words where we do not.
    """
    if shell != "bash":
        # Fish gives a word that is being quoted with its quote.
        return list(arguments[:-1]), arguments[-1].lstrip("\"'") if arguments else "", 0
    words = split_line(environment.get("_MLX_LINE", ""))[1:] or [""]
    # Readline ends words at : and @ and = as well, and replaces only what is behind the last of them.
    own = environment.get("_MLX_WORD", "").lstrip("\"'")
    current = words[-1]
    return words[:-1], current, len(current) - len(own) if current.endswith(own) else 0


def split_line(line: str) -> list[str]:
    """The words of a line as a shell reads them, the last one up to the end, be it quoted or empty."""
    words, word, quote, escaped, begun = [], "", "", False, False
    for char in line:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\" and quote != "'":
            escaped = begun = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, begun = char, True
        elif char.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    return [*words, word]


def show(shell: str, answer: Answer, cut: int, environment: Mapping[str, str]) -> str:
    """The answer as the script of a shell reads it, one proposal a line."""
    found = dict(reversed([one for one in answer.proposals if _HARMLESS.fullmatch(one[0])]))
    proposals = [(word, _meaning(found[word])) for word, _ in answer.proposals if word in found]
    proposals = list(dict.fromkeys(proposals))
    if shell == "bash":
        lines = _bash_lines([(word[cut:], meaning) for word, meaning in proposals], environment)
    else:
        lines = [f"word\t{word}\t{meaning}" for word, meaning in proposals]
    lines += ["partial\t-\t"] if answer.partial else []
    lines += ["files\t-\t"] if answer.files else []
    return "".join(f"{line}\n" for line in lines)


def _meaning(text: str) -> str:
    shown = printable(" ".join(text.split()), _HELP_WIDTH)
    return re.sub(r"[`$\\]", "", shown)


def _bash_lines(proposals: Sequence[tuple[str, str]], environment: Mapping[str, str]) -> list[str]:
    """Bash shows proposals as they are, so the meaning is put behind them where one has to be chosen."""
    alone = len(proposals) == 1 or environment.get("_MLX_TYPE") in _MENU
    width = max((len(word) for word, _ in proposals), default=0)
    return [
        f"word\t{word}" if alone or not meaning else f"word\t{word.ljust(width)}  ({meaning})"
        for word, meaning in proposals
    ]


_BASH = r"""# Completion of mlx for bash.
_mlx_completion() {
    local kind value program=${1/#\~\//$HOME/}
    COMPREPLY=()
    while IFS=$'\t' read -r kind value; do
        case $kind in
            word) COMPREPLY+=("$value") ;;
            partial) compopt -o nospace 2>/dev/null ;;
            files) compopt -o default 2>/dev/null ;;
        esac
    done < <(_MLX_COMPLETE=bash _MLX_LINE="${COMP_LINE:0:COMP_POINT}" _MLX_WORD="$2" \
        _MLX_TYPE="$COMP_TYPE" "$program" 2>/dev/null)
}
complete -o nosort -F _mlx_completion mlx 2>/dev/null || complete -F _mlx_completion mlx
"""

_ZSH = r"""#compdef mlx
# Completion of mlx for zsh.
_mlx() {
    local kind value meaning program=${words[1]/#\~\//$HOME/} with_files
    local -a values shown ending
    while IFS=$'\t' read -r kind value meaning; do
        case $kind in
            word) values+=("$value"); shown+=("${value}${meaning:+  -- $meaning}") ;;
            partial) ending=(-S '') ;;
            files) with_files=1 ;;
        esac
    done < <(_MLX_COMPLETE=zsh "$program" "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    (( $#values )) && compadd -V mlx -l -d shown "${ending[@]}" -a values
    [[ -n $with_files ]] && _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _mlx mlx
"""

_FISH = r"""# Completion of mlx for fish.
function __mlx_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    env _MLX_COMPLETE=fish $program $words[2..-1] "$current" 2>/dev/null |
    while read -l -d \t kind value meaning
        switch $kind
            case word
                printf '%s\t%s\n' $value "$meaning"
            case files
                __fish_complete_path "$current"
        end
    end
end
complete --command mlx --keep-order --no-files --arguments '(__mlx_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The completion script of a shell.

    Raises:
        UsageError: there is none.
    """
    if shell not in _SCRIPTS:
        shown = printable(shell, 40)
        raise UsageError(
            f"There is no completion for {shown!r}." if shell else "It is not clear which shell this is.",
            hint=f"Name one: {', '.join(SHELLS)}.",
        )
    return _SCRIPTS[shell]


def current_shell(environment: Mapping[str, str]) -> str:
    """The shell that called, else the user's own; empty when neither is known."""
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        except OSError:
            break  # not Linux, or nobody above
        name = fields[0].partition("(")[2].removeprefix("-")
        if name in SHELLS:
            return name
        process = int(fields[2].split()[1])
    return Path(environment.get("SHELL", "")).name


def install(shell: str, environment: Mapping[str, str]) -> list[Path]:
    """Write the script where the shell finds it, and for bash and zsh a line in their start-up file.

    Returns:
        The files that were written; none when everything was there.

    Raises:
        UsageError: there is no script for this shell, or a file cannot be written.
    """
    text, home = script(shell), Path(environment.get("HOME", "~")).expanduser()
    settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "fish":
        return _written(settings / "fish" / "completions" / "mlx.fish", text)
    target = data / "mlx" / f"completion.{shell}"
    start_up = (
        home / ".bashrc" if shell == "bash" else Path(environment.get("ZDOTDIR") or home) / ".zshrc"
    ).resolve()
    line = f"[ -r '{target}' ] && . '{target}'  # completion of mlx"
    if "'" in str(target):
        raise UsageError(f"The path {str(target)!r} has a quote in it.", hint="Set XDG_DATA_HOME.")
    before = start_up.read_text(errors="surrogateescape") if start_up.is_file() else ""
    found = _written(target, text)
    if line not in before:
        gap = "" if not before or before.endswith("\n") else "\n"
        found += _written(start_up, f"{before}{gap}{line}\n")
    return found


def _written(path: Path, text: str) -> list[Path]:
    content = text.encode(errors="surrogateescape")
    if path.is_file() and path.read_bytes() == content:
        return []
    write_atomic(path, content, mode=path.stat().st_mode & 0o777 if path.exists() else 0o644)
    return [path]
