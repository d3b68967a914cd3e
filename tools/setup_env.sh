#!/bin/sh
# Make, mend or bring up to date the environment that the Makefile's targets run in.
#   tools/setup_env.sh DIRECTORY EXTRAS [TENSORFLOW [KERAS]]
# with PYTHON (an interpreter) and UV (empty: use pip) from the environment.
# In sh, because it must say its sentences where there is no Python, or one of any age.
set -eu
venv=$1 extras=$2 tensorflow=${3-} keras=${4-}
PYTHON=${PYTHON-}
uv=${UV-$(command -v uv || true)}

stop() {
    echo "$*" >&2
    exit 1
}

newest=13
case $tensorflow in
    2.18 | 2.19) newest=12 wanted="tensorflow~=$tensorflow.0" ;;
    2.20 | 2.21) wanted="tensorflow~=$tensorflow.0" ;;
    latest) wanted=tensorflow ;;
    "") wanted= ;;
    *) stop "TF=$tensorflow is not supported: use 2.18, 2.19, 2.20, 2.21 or latest." ;;
esac
case $keras in
    3.14 | 3.15) instead="keras~=$keras.0" ;;
    latest) instead=keras ;;
    "") instead= ;;
    *) stop "KERAS=$keras is not supported: use 3.14, 3.15 or latest." ;;
esac
who="this project needs"
[ $newest = 13 ] || who="TensorFlow $tensorflow needs"

version() { # prints 3.11, or nothing where the command does not run (a pyenv shim, say)
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null || true
}

fits() {
    case $1 in
        3.1[1-9]) [ "${1#3.}" -le $newest ] ;;
        *) false ;;
    esac
}

makes_environments() {
    [ -n "$uv" ] || "$1" -c 'import venv, ensurepip' 2>/dev/null </dev/null
}

choose_python() { # sets python: the first that runs, fits and can make environments
    if [ -n "$PYTHON" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.13 python3.12 python3.11 python
    fi
    unfit= bare=
    for python; do
        has=$(version "$python")
        if [ -z "$has" ]; then
            continue
        elif ! fits "$has"; then
            unfit=${unfit:-"$python is Python $has"}
        elif ! makes_environments "$python"; then
            bare=${bare:-"$python"}
        else
            return 0
        fi
    done
    if [ -n "$bare" ]; then
        has=$(version "$bare")
        stop "$bare (Python $has) cannot make environments, its venv or ensurepip is missing:" \
            "install it (Debian and Ubuntu: apt install python$has-venv), or install uv."
    elif [ -n "$unfit" ]; then
        stop "$unfit, and $who Python 3.11 to 3.$newest:" \
            "install one and, if make does not find it, name it: make test PYTHON=python3.12"
    elif [ -n "$PYTHON" ]; then
        stop "PYTHON=$PYTHON does not run: name a Python 3.11 to 3.$newest."
    fi
    stop "No Python was found, and $who Python 3.11 to 3.$newest:" \
        "install one and, if make does not find it, name it: make test PYTHON=/path/to/python3"
}

usable() { # sets why where what is in $venv has to be thrown away
    inside=$(version "$venv/bin/python")
    if [ -e "$venv/.unfinished" ]; then
        why="an interrupted call left it half made"
    elif [ -z "$inside" ]; then
        why="its Python does not run"
    elif [ -e "$venv/.project" ] && [ "$(cat "$venv/.project")" != "$(pwd -P)" ]; then
        why="it belongs to $(cat "$venv/.project")"
    elif ! fits "$inside"; then
        why="it has Python $inside"
    elif [ -n "$PYTHON" ] && [ "$(version "$PYTHON")" != "$inside" ]; then
        why="it has Python $inside, not that of $PYTHON"
    elif [ -z "$uv" ] && ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        why="it has no pip"
    else
        return 0
    fi
    return 1
}

running=$(cat "$venv/.unfinished" 2>/dev/null || true)
alive() { [ -n "$running" ] && kill -0 "$running" 2>/dev/null; }
if alive && sleep 2 && alive; then # a process that was just interrupted needs a moment to end
    stop "Process $running is making $venv: wait until it is done, or remove $venv if it is not."
fi

if ! usable; then
    choose_python
    if [ -e "$venv" ]; then
        echo "Making $venv again ($why), with $python, Python $has."
        rm -rf "$venv"
    else
        echo "Making $venv with $python, Python $has."
    fi
    mkdir -p "$venv"
    echo $$ >"$venv/.unfinished"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --allow-existing --python "$(command -v "$python")" "$venv"
    else
        "$python" -m venv "$venv"
    fi
    pwd -P >"$venv/.project"
fi
rm -f "$venv"/.ready-*
echo $$ >"$venv/.unfinished"

install() {
    [ -t 1 ] || set -- --quiet "$@"
    if [ -n "$uv" ]; then
        "$uv" pip install --python "$venv/bin/python" "$@"
    else
        "$venv/bin/python" -m pip install --disable-pip-version-check "$@"
    fi || stop "The installation into $venv did not finish, for the reason above:" \
        "mend that and call make again."
}

with=$([ -n "$uv" ] && echo uv || echo pip)
echo "Installing into $venv with $with; the first time takes some minutes without a package cache."
# The constraints pin one TensorFlow and what goes with it, so another one comes without them.
if [ -n "$wanted" ]; then
    install -e ".[$extras]" "$wanted"
else
    install -c constraints.txt -e ".[$extras]"
fi
# Its models are tested where it can be had. Here, since the last call has the last word on Keras.
(install --no-deps -r tests/kerashub.txt) ||
    echo "Without KerasHub tests/test_kerashub.py is skipped; everything else works." >&2
# In a call of its own, so that it may also be newer than pyproject.toml allows.
[ -z "$instead" ] || install --upgrade "$instead"

# At its end Python looks for garbage among TensorFlow's modules, for a second; a test run has ends by
# the hundred.
echo 'import atexit, gc; atexit.register(gc.freeze)' \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/quick_end.pth"

"$venv/bin/python" -m ipykernel install --sys-prefix --name mgpu --display-name mgpu >/dev/null
# JupyterLab asks at its first start whether it may show news; that is no part of a lesson.
"$venv/bin/python" -m jupyterlab.labextensions disable --level=sys_prefix \
    "@jupyterlab/apputils-extension:announcements" >/dev/null 2>&1 ||
    stop "JupyterLab in $venv does not run: call make clean, and make again."
rm "$venv/.unfinished"
