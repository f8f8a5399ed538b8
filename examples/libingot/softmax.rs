// Runs softmax.ingot, whose input and output are f32[N, 3]. See docs/how-to/c-abi.md.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    nbytes: usize,
    dims: *const i64,
    rank: c_int,
}

#[repr(C)]
struct Spec {
    name: *const c_char,
    dtype: *const c_char,
    itemsize: usize,
    dims: *const i64,
    rank: c_int,
}

extern "C" {
    fn ingot_error() -> *const c_char;
    fn ingot_open(path: *const c_char, model: *mut *mut c_void) -> c_int;
    fn ingot_close(model: *mut c_void);
    fn ingot_output(model: *const c_void, index: c_int, spec: *mut Spec) -> c_int;
    fn ingot_session_open(model: *const c_void, threads: c_int, session: *mut *mut c_void) -> c_int;
    fn ingot_session_close(session: *mut c_void);
    fn ingot_run(session: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> c_int;
}

fn check(code: c_int) -> Result<(), String> {
    if code == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(ingot_error()) }.to_string_lossy().into_owned())
}

fn text(bytes: *const c_char) -> String {
    unsafe { CStr::from_ptr(bytes) }.to_string_lossy().into_owned()
}

fn run(path: &str) -> Result<(), String> {
    let path = CString::new(path).map_err(|e| e.to_string())?;
    let (mut model, mut session) = (null_mut(), null_mut());
    let mut spec = Spec { name: null(), dtype: null(), itemsize: 0, dims: null(), rank: 0 };
    let mut data: [f32; 6] = [0.0, 1.0, 2.0, 5.0, 5.0, 5.0];
    let dims: [i64; 2] = [2, 3];
    let x = Tensor { data: data.as_mut_ptr().cast(), nbytes: 24, dims: dims.as_ptr(), rank: 2 };
    let mut y = Tensor { data: null_mut(), nbytes: 0, dims: null(), rank: 0 };
    unsafe {
        check(ingot_open(path.as_ptr(), &mut model))?;
        check(ingot_output(model, 0, &mut spec))?;
        check(ingot_session_open(model, 1, &mut session))?;
        check(ingot_run(session, &x, &mut y))?;
        let shape = std::slice::from_raw_parts(y.dims, y.rank as usize);
        let values = std::slice::from_raw_parts(y.data.cast::<f32>(), y.nbytes / 4);
        println!("{}: {}{:?}", text(spec.name), text(spec.dtype), shape);
        for row in values.chunks(3) {
            println!("{:.4} {:.4} {:.4}", row[0], row[1], row[2]);
        }
        ingot_session_close(session);
        ingot_close(model);
    }
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| "softmax.ingot".into());
    if let Err(message) = run(&path) {
        eprintln!("{message}");
        std::process::exit(1);
    }
}
