package main

import (
	"fmt"
	_ "net"
	"runtime/debug"
)

func main() {
	bad := 0
	for r := 0; r < 6; r++ {
		x := make([][]uint64, 40)
		for i := range x {
			x[i] = make([]uint64, 65536)
			for k := range x[i] {
				if x[i][k] != 0 {
					bad++
				}
				x[i][k] = uint64(k + i)
			}
		}
		for i := range x {
			for k := range x[i] {
				if x[i][k] != uint64(k+i) {
					bad++
				}
			}
		}
		x = nil
		debug.FreeOSMemory()
	}
	fmt.Println("bad", bad)
}
