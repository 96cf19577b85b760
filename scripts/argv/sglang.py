"""Parses command lines with SGLang's own parser, from a wheel's sources, without what SGLang needs to run.

usage: sglang.py SOURCES < {"lines": [[ARG, ...], ...]}, prints {"flags": {...}, "parsed": [...]} as JSON.

Real are the parser (sglang.srt.server_args and the modules that declare its fields) and the merging of --config. Every
other module, torch and transformers included, is an empty shape: what only the running server checks isn't reached, nor
are the choices of flags that are made from such modules.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types

REAL = (
    "sglang.srt.server_args",
    "sglang.srt.arg_groups",
    "sglang.srt.environ",
    "sglang.srt.server_args_config_parser",
    "sglang.srt.utils.server_args_config_parser",
    "sglang.srt.utils.network",
)
# Their __init__ imports half of SGLang.
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.utils")


class Shape(type):
    """A class that is whatever it is taken for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return shape(name)

    def __call__(cls, *args, **kwargs):
        is_decorated = len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type))
        return args[0] if is_decorated else cls

    def __add__(cls, other):
        return list(other) if isinstance(other, (list, tuple)) else cls

    def __radd__(cls, other):
        return other

    def __or__(cls, other):
        return cls

    __ror__ = __or__
    __mul__ = __or__

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())

    def __contains__(cls, item):
        return False

    def __lt__(cls, other):
        return False

    def __bool__(cls):
        return False

    def __int__(cls):
        return 0

    def __hash__(cls):
        return id(cls)

    def __enter__(cls):
        return cls

    def __exit__(cls, *_):
        return False


class Base:
    def __init_subclass__(cls, **kwargs):
        pass


def shape(name):
    return Shape(name, (Base,), {})


class EmptyModule(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__file__ = None

    def __getattr__(self, name):
        if name == "__version__":
            return "99.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        return shape(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Before the finder of paths: real modules are left to it."""

    def __init__(self):
        self.paths = {}

    def find_spec(self, name, path=None, target=None):
        if any(name == real or name.startswith(real + ".") for real in REAL):
            return None
        if name in PACKAGES:
            found = importlib.machinery.PathFinder.find_spec(name, path)
            self.paths[name] = list(found.submodule_search_locations)
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if not name.startswith("sglang") and self.is_there(name, path):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    @staticmethod
    def is_there(name, path):
        machinery = importlib.machinery
        try:
            return (
                machinery.BuiltinImporter.find_spec(name) is not None
                or machinery.FrozenImporter.find_spec(name) is not None
                or machinery.PathFinder.find_spec(name, path) is not None
            )
        except (ImportError, ValueError):
            return False

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        module.__path__ = self.paths.get(module.__name__, [])


def merger(parser):
    """As prepare_server_args makes it; the first versions give it the switches instead of the parser."""
    try:
        from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
    except (ImportError, AttributeError):
        from sglang.srt.server_args_config_parser import ConfigArgumentMerger
    if not isinstance(ConfigArgumentMerger, type) or isinstance(ConfigArgumentMerger, Shape):
        from sglang.srt.server_args_config_parser import ConfigArgumentMerger
    try:
        return ConfigArgumentMerger(parser)
    except TypeError:
        return ConfigArgumentMerger(boolean_actions=[])


def kind(action):
    if action.nargs == 0:
        return "switch"
    return {"+": "list", "*": "list", "?": "optional"}.get(action.nargs, "value")


def main():
    sys.path.insert(0, sys.argv[1])
    at = next(i for i, finder in enumerate(sys.meta_path) if finder is importlib.machinery.PathFinder)
    sys.meta_path.insert(at, Finder())
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    flags = {
        option: kind(action)
        for action in parser._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }
    parsed = []
    for line in json.load(sys.stdin)["lines"]:
        merged = merger(parser).merge_config_with_args(list(line)) if "--config" in line else line
        values = vars(parser.parse_args(merged))
        parsed.append({name: value for name, value in values.items() if isinstance(value, (str, int, bool, type(None)))})
    json.dump({"flags": flags, "parsed": parsed}, sys.stdout)


main()
