package duralite

import _ "embed"

//go:embed lib/linux_amd64/libduralite.so
var embedded []byte
