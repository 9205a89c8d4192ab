package main

import (
	"fmt"
	_ "net"
	"runtime/debug"
)

// New memory reads as zeros, also what the runtime had given up by a raw madvise before.
func main() {
	bad := 0
	for round := 0; round < 6; round++ {
		blocks := make([][]uint64, 80)
		for i := range blocks {
			blocks[i] = make([]uint64, 65536)
			for k := range blocks[i] {
				if blocks[i][k] != 0 {
					bad++
				}
				blocks[i][k] = uint64(k + i)
			}
		}
		for i := range blocks {
			for k := range blocks[i] {
				if blocks[i][k] != uint64(k+i) {
					bad++
				}
			}
		}
		blocks = nil
		debug.FreeOSMemory()
	}
	fmt.Println("bad", bad)
}
