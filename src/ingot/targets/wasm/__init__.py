"""WebAssembly: objects by LLVM, linked to a module here, and the files of a package around it."""
