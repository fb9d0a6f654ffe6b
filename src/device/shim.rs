//! Safe calls into the C++ shim and the late loading of `libtorch_cuda`.
//!
//! One binary serves CPU and GPU: it links `libtorch_cpu` only, and [`init`] loads the `libtorch_cuda.so` that lies
//! beside it *before the first torch operation of the process* (any earlier one caches "no CUDA" for good).

use crate::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::{Device, Kind, Tensor};

unsafe extern "C" {
    fn bstui_error() -> *const c_char;
    fn bstui_grad(
        outputs: *mut *mut c_void,
        grads: *mut *mut c_void,
        n_out: c_int,
        inputs: *mut *mut c_void,
        n_in: c_int,
        result: *mut *mut c_void,
    ) -> c_int;
    fn bstui_memory(device: c_int, out: *mut i64) -> c_int;
    fn bstui_reset_peak(device: c_int) -> c_int;
    fn bstui_empty_cache() -> c_int;
    fn bstui_deterministic(on: bool);
    fn bstui_use_pool_stream(device: c_int, handle: *mut *mut c_void) -> c_int;
    fn bstui_synchronize(device: c_int) -> c_int;
    fn bstui_threads(n: c_int);
    fn bstui_current_stream(device: c_int, handle: *mut *mut c_void) -> c_int;
    fn bstui_gemm(out: *mut c_void, a: *mut c_void, b: *mut c_void, beta: f64, alpha: f64) -> c_int;
    fn bstui_gemm_f32(out: *mut c_void, a: *mut c_void, b: *mut c_void, alpha: f64) -> c_int;
    fn bstui_flash_forward(
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        scale: f64,
        window_left: i64,
        result: *mut *mut c_void,
    ) -> c_int;
    fn bstui_flash_backward(
        grad: *mut c_void,
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        saved: *mut *mut c_void,
        scale: f64,
        window_left: i64,
        result: *mut *mut c_void,
    ) -> c_int;
    fn bstui_cudnn_forward(
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        scale: f64,
        keep: bool,
        result: *mut *mut c_void,
    ) -> c_int;
    fn bstui_cudnn_backward(
        grad: *mut c_void,
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        saved: *mut *mut c_void,
        scale: f64,
        result: *mut *mut c_void,
    ) -> c_int;
    fn bstui_flash_varlen(
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        cu_seqlens: *mut c_void,
        max_len: i64,
        scale: f64,
        window_left: i64,
        out: *mut *mut c_void,
    ) -> c_int;
}

/// Whether CUDA is there, and if not, why not in one clause.
pub type Cuda = std::result::Result<(), String>;

/// Prepares libtorch for this process, once; later calls return the first answer.
///
/// Must come before any tensor is made. `libtorch_cuda` is loaded only where a driver is present.
pub fn init() -> &'static Cuda {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    CUDA.get_or_init(|| {
        let asked =
            std::env::var("OMP_NUM_THREADS").ok().and_then(|n| n.trim().parse::<usize>().ok()).filter(|n| *n > 0);
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get().min(64));
        // SAFETY: only sets a global of libtorch. Without it gradients of a 2-core machine may depend on the pool.
        unsafe { bstui_threads(asked.unwrap_or_else(cores) as c_int) };
        load_torch_cuda()
    })
}

fn load_torch_cuda() -> Cuda {
    #[cfg(not(feature = "cuda"))]
    return Err("this build has no GPU backend (feature 'cuda' is off)".into());
    #[cfg(feature = "cuda")]
    {
        if !crate::device::cuda::driver_present() {
            return Err("no CUDA driver (libcuda.so.1 not found)".into());
        }
        let path = torch_cpu_path().ok_or("libtorch_cpu.so is not mapped")?.with_file_name("libtorch_cuda.so");
        if !path.exists() {
            return Err(
                "this libtorch has no libtorch_cuda.so (CPU build); run `make setup` again on this machine".into()
            );
        }
        let name = CString::new(path.to_string_lossy().as_bytes()).map_err(|_| "odd libtorch path".to_string())?;
        // SAFETY: a library of the same release as the linked libtorch_cpu, loaded once, never unloaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns a C string or null, valid until the next dl call of this thread.
            let why = unsafe {
                let e = libc::dlerror();
                if e.is_null() { String::new() } else { CStr::from_ptr(e).to_string_lossy().into_owned() }
            };
            return Err(format!("libtorch_cuda.so cannot be loaded: {why}"));
        }
        if tch::Cuda::is_available() { Ok(()) } else { Err("libtorch sees no usable GPU".into()) }
    }
}

/// Where the linked `libtorch_cpu.so` was found, from this process's memory map.
#[must_use]
pub fn torch_cpu_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|l| l.ends_with("/libtorch_cpu.so"))?;
    Some(PathBuf::from(&line[line.find('/')?..]))
}

fn check(code: c_int, doing: &str) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: a NUL-terminated string of this thread, valid until the next shim call.
    let text = unsafe { CStr::from_ptr(bstui_error()) }.to_string_lossy();
    let line = text.lines().next().unwrap_or_default().to_string();
    Err(if code == 2 { out_of_memory(&line) } else { Error::run(format!("{doing} failed: {line}")) })
}

/// The error of a device that ran out of memory.
#[must_use]
pub fn out_of_memory(detail: &str) -> Error {
    Error::new(crate::error::Kind::OutOfMemory, format!("the device is out of memory: {detail}")).next(
        "lower data.max_length, the batch size or stream.loss_chunk, or set stream.vram_budget to what is really free",
    )
}

impl From<tch::TchError> for Error {
    fn from(e: tch::TchError) -> Error {
        let text = e.to_string();
        let line = text.lines().next().unwrap_or_default();
        if text.contains("out of memory") { out_of_memory(line) } else { Error::run(format!("libtorch: {line}")) }
    }
}

/// Gradients of `outputs`, weighted by `grads`, with respect to `inputs`; `None` where an input was not reached.
///
/// # Errors
/// Autograd's own, or out of device memory.
pub fn grad(outputs: &[&Tensor], grads: &[&Tensor], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let raw = |ts: &[&Tensor]| ts.iter().map(|t| t.as_ptr() as *mut c_void).collect::<Vec<_>>();
    let (mut o, mut g, mut i) = (raw(outputs), raw(grads), raw(inputs));
    let mut result = vec![std::ptr::null_mut(); inputs.len()];
    assert_eq!(o.len(), g.len(), "one output gradient per output");
    // SAFETY: pointers to live tensors, which the shim only reads; `result` has room for one per input.
    let code = unsafe {
        bstui_grad(
            o.as_mut_ptr(),
            g.as_mut_ptr(),
            o.len() as c_int,
            i.as_mut_ptr(),
            i.len() as c_int,
            result.as_mut_ptr(),
        )
    };
    check(code, "backward")?;
    Ok(result.into_iter().map(owned).collect())
}

/// Takes ownership of a tensor made by the shim.
fn owned(p: *mut c_void) -> Option<Tensor> {
    // SAFETY: the shim made it with `new at::Tensor`, which is what tch frees.
    (!p.is_null()).then(|| unsafe { Tensor::from_ptr(p.cast()) })
}

/// A view of `shape` over raw memory; nothing is copied or owned.
///
/// # Safety
/// `ptr` must point to that many elements of `kind` on `device`, aligned for it, alive until the view and everything
/// derived from its storage is gone.
pub unsafe fn view(ptr: *const u8, shape: &[i64], kind: Kind, device: Device) -> Tensor {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    // SAFETY: the caller's promise.
    unsafe { Tensor::from_blob(ptr, shape, &strides, kind, device) }
}

/// Allocator figures of a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Allocated now.
    pub allocated: u64,
    /// Allocated peak since [`reset_peak`].
    pub allocated_peak: u64,
    /// Reserved peak since [`reset_peak`].
    pub reserved_peak: u64,
}

/// The caching allocator's figures of GPU `device`; zeros where there is none.
#[must_use]
pub fn memory(device: usize) -> Memory {
    let mut out = [0_i64; 4];
    // SAFETY: `out` has room for the four figures.
    if unsafe { bstui_memory(device as c_int, out.as_mut_ptr()) } != 0 {
        return Memory::default();
    }
    Memory { allocated: out[0] as u64, allocated_peak: out[1] as u64, reserved_peak: out[3] as u64 }
}

/// Starts peak figures anew.
pub fn reset_peak(device: usize) {
    // SAFETY: no arguments that could be wrong; a failure means there is no such device, and no peak either.
    unsafe { bstui_reset_peak(device as c_int) };
}

/// Gives cached device memory back to the driver.
pub fn empty_cache() {
    // SAFETY: takes nothing.
    unsafe { bstui_empty_cache() };
}

/// What [`set_deterministic`] was told last.
static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

/// Deterministic kernels on or off, for the whole process.
pub fn set_deterministic(on: bool) {
    DETERMINISTIC.store(on, Ordering::SeqCst);
    // SAFETY: sets two flags of libtorch's global context.
    unsafe { bstui_deterministic(on) };
}

/// Whether every kernel has to give the same bits each time. libtorch asks this before its own choices; calls of a
/// kernel by name go past it and have to ask by themselves.
#[must_use]
pub fn deterministic() -> bool {
    DETERMINISTIC.load(Ordering::SeqCst)
}

/// Makes a stream of torch's pool current on this thread and returns its native handle.
///
/// # Errors
/// No GPU.
pub fn use_pool_stream(device: usize) -> Result<*mut c_void> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` is written once.
    check(unsafe { bstui_use_pool_stream(device as c_int, &raw mut handle) }, "taking a compute stream")?;
    Ok(handle)
}

/// Waits for everything queued on the GPU.
///
/// # Errors
/// An asynchronous failure of earlier work.
pub fn synchronize(device: usize) -> Result<()> {
    // SAFETY: takes a device index.
    check(unsafe { bstui_synchronize(device as c_int) }, "waiting for the GPU")
}

/// Native handle of the stream that libtorch uses on this thread.
///
/// # Errors
/// No GPU.
pub fn current_stream(device: usize) -> Result<*mut c_void> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` is written once.
    check(unsafe { bstui_current_stream(device as c_int, &raw mut handle) }, "asking for the stream")?;
    Ok(handle)
}

fn raw(t: &Tensor) -> *mut c_void {
    t.as_ptr() as *mut c_void
}

/// `out = beta·out + alpha·a·b` in place, `[n,m]·[m,k]`; `out` may be a slice of a wider matrix. Never recorded.
///
/// # Errors
/// Shapes or types don't fit, or the device is out of memory.
pub fn gemm(out: &Tensor, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<()> {
    // SAFETY: pointers to live tensors.
    check(unsafe { bstui_gemm(raw(out), raw(a), raw(b), beta, alpha) }, "a matrix product")
}

/// `out += alpha·a·b` with `out` in f32, whatever the type of `a` and `b`. Never recorded.
///
/// # Errors
/// As [`gemm`].
pub fn gemm_f32(out: &Tensor, a: &Tensor, b: &Tensor, alpha: f64) -> Result<()> {
    // SAFETY: pointers to live tensors.
    check(unsafe { bstui_gemm_f32(raw(out), raw(a), raw(b), alpha) }, "a matrix product into f32")
}

/// The `N` tensors that `make` puts where it is told to.
fn several<const N: usize>(doing: &str, make: impl FnOnce(*mut *mut c_void) -> c_int) -> Result<[Tensor; N]> {
    let mut made = [std::ptr::null_mut(); N];
    check(make(made.as_mut_ptr()), doing)?;
    Ok(made.map(|p| owned(p).expect("the shim made each of them")))
}

/// What the backward pass of [`flash_forward`] or [`cudnn_forward`] needs: out, log-sum-exp, and two tensors of random
/// state.
pub type AttentionSaved = [Tensor; 4];

/// Causal flash attention on the GPU: q `[B,S,H,D]`, k and v `[B,S,Hkv,D]` → first of the result, `[B,S,H,D]`.
///
/// A key is visible if query − key < `window`. No graph is made.
///
/// # Errors
/// Types or shapes the kernel doesn't take.
pub fn flash_forward(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, window: Option<usize>) -> Result<AttentionSaved> {
    let left = window.map_or(-1, |w| w as i64 - 1);
    // SAFETY: pointers to live tensors; there is room for the four that the shim makes.
    several("flash attention", |made| unsafe { bstui_flash_forward(raw(q), raw(k), raw(v), scale, left, made) })
}

/// Gradients of q, k and v, shaped as they are, from that of the output, `[B,S,H,D]`.
///
/// # Errors
/// As [`flash_forward`].
pub fn flash_backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    saved: &AttentionSaved,
    scale: f64,
    window: Option<usize>,
) -> Result<[Tensor; 3]> {
    let mut kept = saved.each_ref().map(raw);
    let left = window.map_or(-1, |w| w as i64 - 1);
    // SAFETY: pointers to live tensors, which the shim only reads; there is room for the three it makes.
    several("flash attention's backward", |made| unsafe {
        bstui_flash_backward(raw(grad), raw(q), raw(k), raw(v), kept.as_mut_ptr(), scale, left, made)
    })
}

/// cuDNN's causal attention, as [`flash_forward`]; with `keep`, the result can go through [`cudnn_backward`].
///
/// # Errors
/// No cuDNN is there, or types or shapes that it doesn't take.
pub fn cudnn_forward(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, keep: bool) -> Result<AttentionSaved> {
    // SAFETY: pointers to live tensors; there is room for the four that the shim makes.
    several("cuDNN's attention", |made| unsafe { bstui_cudnn_forward(raw(q), raw(k), raw(v), scale, keep, made) })
}

/// As [`flash_backward`], from what [`cudnn_forward`] kept.
///
/// # Errors
/// As [`cudnn_forward`].
pub fn cudnn_backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    saved: &AttentionSaved,
    scale: f64,
) -> Result<[Tensor; 3]> {
    let mut kept = saved.each_ref().map(raw);
    // SAFETY: pointers to live tensors, which the shim only reads; there is room for the three it makes.
    several("the backward pass of cuDNN's attention", |made| unsafe {
        bstui_cudnn_backward(raw(grad), raw(q), raw(k), raw(v), kept.as_mut_ptr(), scale, made)
    })
}

/// Causal flash attention over packed rows on the GPU: q `[N,H,D]`, k and v `[N,Hkv,D]`, `cu_seqlens` I32 `[rows+1]`.
///
/// # Errors
/// Types or shapes the kernel doesn't take.
pub fn flash_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    cu_seqlens: &Tensor,
    max_len: usize,
    scale: f64,
    window: Option<usize>,
) -> Result<Tensor> {
    let mut out = std::ptr::null_mut();
    let p = |t: &Tensor| t.as_ptr() as *mut c_void;
    let left = window.map_or(-1, |w| w as i64 - 1);
    // SAFETY: pointers to live tensors; `out` is written once.
    let code =
        unsafe { bstui_flash_varlen(p(q), p(k), p(v), p(cu_seqlens), max_len as i64, scale, left, &raw mut out) };
    check(code, "packed attention")?;
    owned(out).ok_or_else(|| Error::run("packed attention returned nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grad_takes_output_gradients_and_skips_unreached_inputs() {
        let _ = init();
        let x = Tensor::from_slice(&[1.0_f32, 2.0]).set_requires_grad(true);
        let unused = Tensor::from_slice(&[1.0_f32]).set_requires_grad(true);
        let y = &x * &x;
        let g = grad(&[&y], &[&Tensor::from_slice(&[10.0_f32, 100.0])], &[&x, &unused]).unwrap();
        assert_eq!(Vec::<f32>::try_from(g[0].as_ref().unwrap()).unwrap(), [20.0, 400.0]);
        assert!(g[1].is_none());
    }

    #[test]
    fn a_failed_backward_is_an_error_not_a_crash() {
        let _ = init();
        let x = Tensor::from_slice(&[1.0_f32]);
        let e = grad(&[&x], &[&x], &[&x]).unwrap_err();
        assert!(e.to_string().contains("backward failed"), "{e}");
    }
}
