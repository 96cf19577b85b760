"""Parses command lines with vLLM's own parser.

usage: vllm_parser.py SOURCES < {"lines": [[ARG, ...], ...]}, prints {"version", "how", "flags", "parsed"} as JSON.

SOURCES are the Python files of a release, or "" for the vLLM that is installed. They run on the torch and the libraries
of that one: what else a release imports (MISSING) is an empty shape. `how` says what was reached: the whole `vllm serve`
with its validation, or the builder of its arguments.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types

# Not used for the command line, and of versions that the installed vLLM doesn't want.
MISSING = ("gguf", "diskcache", "orjson")
BUILDERS = ("openai", "serve", "common", "launchers")


class EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in MISSING:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        pass


def parser_class():
    for name in ("vllm.utils.argparse_utils", "vllm.utils"):
        try:
            return importlib.import_module(name).FlexibleArgumentParser
        except (ModuleNotFoundError, AttributeError):
            pass
    raise SystemExit("FlexibleArgumentParser is nowhere")


def whole():
    """`vllm serve` as the program makes it: (parser, its `serve` part, validate)."""
    command = importlib.import_module("vllm.entrypoints.cli.serve").cmd_init()[0]
    parser = parser_class()(prog="vllm")
    serve = command.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    return parser, serve, command.validate


def builder():
    for name in BUILDERS:
        module = f"vllm.entrypoints.{name}.cli_args"
        try:
            make = importlib.import_module(module).make_arg_parser
        except ModuleNotFoundError as error:
            if module.startswith(str(error.name)):
                continue
            raise
        serve = make(parser_class()(prog="vllm serve"))
        return serve, serve, importlib.import_module(module).validate_parsed_serve_args
    raise SystemExit("make_arg_parser is nowhere")


def parse(parser, validate, line):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            args = parser.parse_args(line)
            validate(args)
    except SystemExit as end:
        lines = said.getvalue().strip().splitlines()
        return {"error": lines[-1] if lines else f"exit {end.code}"}
    except Exception as error:  # what validation thinks of it is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    values = {k: v for k, v in vars(args).items() if isinstance(v, (str, int, bool, list, type(None)))}
    return {"values": json.loads(json.dumps(values, default=str))}


def main():
    out = os.dup(1)
    os.dup2(2, 1)  # vLLM logs on stdout
    if sys.argv[1] != "":
        sys.meta_path.insert(0, Finder())
        sys.path.insert(0, sys.argv[1])
    import importlib.metadata

    try:
        parser, serve, validate = whole()
        how, prefix = "the whole `vllm serve`", ["serve"]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        parser, serve, validate = builder()
        how, prefix = f"its builder of arguments (not the whole program: {reason})", []
    lines = json.load(sys.stdin)["lines"]
    answer = {
        "version": importlib.metadata.version("vllm"),
        "how": how,
        "flags": sorted({o for action in serve._actions for o in action.option_strings}),
        "parsed": [parse(parser, validate, prefix + line) for line in lines],
    }
    with os.fdopen(out, "w") as stream:
        json.dump(answer, stream)


main()
