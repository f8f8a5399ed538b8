// Runs softmax.ingot, whose input and output are f32[N, 3]. See docs/how-to/c-abi.md.
package main

/*
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "ingot.h"
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// check ends the program with the error of the call before.
func check(code C.int) {
	if code != C.INGOT_OK {
		fmt.Fprintln(os.Stderr, C.GoString(C.ingot_error()))
		os.Exit(1)
	}
}

func main() {
	path := "softmax.ingot"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	name := C.CString(path)
	var model *C.ingot_model
	var session *C.ingot_session
	var spec C.ingot_spec
	check(C.ingot_open(name, &model))
	check(C.ingot_output(model, 0, &spec))
	check(C.ingot_session_open(model, 1, &session))

	// C memory, as a tensor holds pointers that Go must not move
	data := (*[6]C.float)(C.malloc(6 * C.sizeof_float))
	dims := (*[2]C.int64_t)(C.malloc(2 * C.sizeof_int64_t))
	*data, *dims = [6]C.float{0, 1, 2, 5, 5, 5}, [2]C.int64_t{2, 3}
	x := C.ingot_tensor{data: unsafe.Pointer(data), nbytes: C.size_t(unsafe.Sizeof(*data)), dims: &dims[0], rank: 2}
	var y C.ingot_tensor
	check(C.ingot_run(session, &x, &y))

	shape := unsafe.Slice(y.dims, y.rank)
	values := unsafe.Slice((*float32)(y.data), shape[0]*shape[1])
	fmt.Printf("%s: %s[%d, %d]\n", C.GoString(spec.name), C.GoString(spec.dtype), shape[0], shape[1])
	for i := 0; i < len(values); i += 3 {
		fmt.Printf("%.4f %.4f %.4f\n", values[i], values[i+1], values[i+2])
	}
	C.ingot_session_close(session)
	C.ingot_close(model)
	C.free(unsafe.Pointer(data))
	C.free(unsafe.Pointer(dims))
	C.free(unsafe.Pointer(name))
}
