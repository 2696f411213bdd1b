#!/usr/bin/env bash
# rustc, which compiles tests without optimisation. A profile of cargo has one level for a package's library and for its
# tests, and the libraries of arithmetic need level 3: their tests took ten times as long to compile as to run.
# bash passes on variables like CARGO_BIN_EXE_bench-player, which sh drops.
case " $* " in
    *" --test "*) exec "$@" -C opt-level=0 ;;
    *) exec "$@" ;;
esac
