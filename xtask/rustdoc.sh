#!/bin/sh
# rustdoc with its unstable options: the description of a library as JSON is one. The compiler itself stays stable.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
