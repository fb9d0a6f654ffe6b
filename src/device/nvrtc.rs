//! Kernels of our own: compiled at run time for the card at hand, launched on libtorch's stream.
//!
//! NVRTC comes with libtorch's CUDA packages but is not linked by it: it lies in `nvidia/cu13/lib` beside `torch/`.
//! cudarc panics where a library is missing, so every call here comes after a look whether it is there.

use crate::device::{cuda, shim};
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, result as driver, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::sync::Arc;
use tch::Tensor;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Address of a tensor's first element.
    Tensor(&'a Tensor),
    /// A null pointer.
    Null,
    /// `long long`
    I64(i64),
    /// `unsigned long long`
    U64(u64),
    /// `int`
    I32(i32),
    /// `float`
    F32(f32),
}

/// A loaded module and its functions.
#[derive(Debug)]
pub struct Program {
    context: Arc<CudaContext>,
    index: usize,
    functions: HashMap<String, Function>,
    /// What it was compiled for, e.g. `sm_90`.
    pub arch: String,
    /// Compute capability, e.g. `(9, 0)`.
    pub capability: (i32, i32),
}

/// A function of a module that is never unloaded.
#[derive(Clone, Copy, Debug)]
struct Function(sys::CUfunction);

// SAFETY: a handle of the driver, valid on every thread that has the context bound; launches bind it.
unsafe impl Send for Function {}
// SAFETY: as above; the driver locks where it must.
unsafe impl Sync for Function {}

/// Compute capability of GPU `index`.
///
/// # Errors
/// Why the driver gives none, in one clause.
pub fn capability(index: usize) -> std::result::Result<(i32, i32), String> {
    if !cuda::driver_present() {
        return Err("no CUDA driver".into());
    }
    let context = CudaContext::new(index).map_err(|e| format!("the GPU can't be opened: {e:?}"))?;
    context.compute_capability().map_err(|e| format!("its compute capability is unknown: {e:?}"))
}

/// Loads NVRTC from beside libtorch, or from where the system has it.
fn load() -> std::result::Result<(), String> {
    // torch/lib/libtorch_cpu.so → nvidia/cu13/lib, its neighbour in site-packages.
    let near = shim::torch_cpu_path().and_then(|file| Some(file.parent()?.join("../../nvidia/cu13/lib")));
    if let Some(near) = near {
        // NVRTC opens its builtins by name, and 13.0's library has no RPATH to find them by: they come first.
        let builtins = std::fs::read_dir(&near).into_iter().flatten().flatten().map(|e| e.path());
        let is_builtins =
            |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc-builtins.so.13"));
        builtins.filter(|p| is_builtins(p)).for_each(|p| open_global(&p));
        open_global(&near.join("libnvrtc.so.13"));
    }
    // SAFETY: only tries to load the library.
    if unsafe { nvrtc_sys::is_culib_present() } { Ok(()) } else { Err("libnvrtc.so.13 not found".into()) }
}

/// Loads a library by path, if it is there, so that others find it by name.
fn open_global(path: &Path) {
    if let (true, Ok(name)) = (path.exists(), CString::new(path.to_string_lossy().as_bytes())) {
        // SAFETY: a library of libtorch's own release, never unloaded.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    }
}

impl Program {
    /// Compiles `source` for GPU `index` and looks up `names`.
    ///
    /// # Errors
    /// What is missing or refused, in one clause.
    pub fn compile(index: usize, source: &str, names: &[String]) -> std::result::Result<Program, String> {
        let capability = capability(index)?;
        let arch = format!("sm_{}{}", capability.0, capability.1);
        let cubin = cubin(source, &arch)?;
        let context = CudaContext::new(index).map_err(|e| format!("the GPU can't be opened: {e:?}"))?;
        context.bind_to_thread().map_err(|e| format!("its context can't be bound: {e:?}"))?;
        // SAFETY: a whole cubin image; the driver copies it. The module is never unloaded: it serves the process.
        let module = unsafe { driver::module::load_data(cubin.as_ptr().cast()) }
            .map_err(|e| format!("the driver refuses the kernels: {e:?}"))?;
        let mut functions = HashMap::new();
        for name in names {
            let symbol = CString::new(name.as_str()).map_err(|_| format!("'{name}' is no name"))?;
            // SAFETY: a module that was just loaded and is never unloaded.
            let function = unsafe { driver::module::get_function(module, symbol) }
                .map_err(|e| format!("no kernel '{name}': {e:?}"))?;
            functions.insert(name.clone(), Function(function));
        }
        Ok(Program { context, index, functions, arch, capability })
    }

    /// Index of the GPU it was compiled for.
    #[must_use]
    pub fn device(&self) -> usize {
        self.index
    }

    /// Queues kernel `name` on the stream that libtorch uses on this thread: `grid` blocks of `block` threads.
    ///
    /// # Safety
    /// `args` must be the kernel's parameters in order and type, and tensors must be on this GPU, alive, and as large
    /// as the kernel takes them to be.
    ///
    /// # Errors
    /// The driver refuses the launch.
    pub unsafe fn launch(&self, name: &str, grid: i64, block: u32, args: &[Arg<'_>]) -> Result<()> {
        let failed = |e| Error::device(format!("CUDA: kernel '{name}': {e:?}"));
        let function = self.functions.get(name).ok_or_else(|| Error::device(format!("no kernel '{name}'")))?;
        let grid = u32::try_from(grid).ok().filter(|&g| g <= i32::MAX as u32);
        let grid = grid.ok_or_else(|| Error::device(format!("kernel '{name}': too many blocks")))?;
        if grid == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(failed)?;
        let stream = shim::current_stream(self.index)?;
        // The driver wants a pointer to each value; an argument takes at most eight bytes, little-endian.
        let mut values = [0_u64; 16];
        let mut pointers = [std::ptr::null_mut::<c_void>(); 16];
        assert!(args.len() <= values.len(), "kernel '{name}' has {} arguments", args.len());
        for ((arg, value), pointer) in args.iter().zip(&mut values).zip(&mut pointers) {
            *value = match *arg {
                Arg::Tensor(t) => t.data_ptr() as u64,
                Arg::Null => 0,
                Arg::I64(x) => x as u64,
                Arg::U64(x) => x,
                Arg::I32(x) => u64::from(x as u32),
                Arg::F32(x) => u64::from(x.to_bits()),
            };
            *pointer = std::ptr::from_mut(value).cast();
        }
        // SAFETY: a live function with the context bound; the values outlive the call, which copies them; what they
        // point to is the caller's promise.
        unsafe {
            driver::launch_kernel(
                function.0,
                (grid, 1, 1),
                (block, 1, 1),
                0,
                stream.cast(),
                &mut pointers[..args.len()],
            )
        }
        .map_err(failed)
    }
}

/// The machine code of `source` for `arch`, e.g. `sm_90`; needs NVRTC but no GPU.
///
/// # Errors
/// NVRTC is missing or refuses, in one clause.
pub fn cubin(source: &str, arch: &str) -> std::result::Result<Vec<u8>, String> {
    load()?;
    let source = CString::new(source).map_err(|_| "the kernels' source has a NUL".to_string())?;
    let program = nvrtc::create_program(&source, Some(c"fused.cu")).map_err(|e| format!("NVRTC: {e:?}"))?;
    // SAFETY: a program that was just made.
    let compiled = unsafe { nvrtc::compile_program(program, &[format!("--gpu-architecture={arch}")]) };
    let out = match compiled {
        Ok(()) => read_cubin(program),
        Err(e) => {
            // SAFETY: the same program; the log is a NUL-terminated string.
            let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
            let text: Vec<u8> = log.iter().map(|&c| c as u8).collect();
            let text = CStr::from_bytes_until_nul(&text).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
            Err(format!("NVRTC for {arch}: {e:?}: {}", text.lines().next().unwrap_or_default()))
        }
    };
    // SAFETY: made above and not used again.
    let _ = unsafe { nvrtc::destroy_program(program) };
    out
}

fn read_cubin(program: nvrtc_sys::nvrtcProgram) -> std::result::Result<Vec<u8>, String> {
    let mut len = 0;
    // SAFETY: a compiled program; `len` is written.
    unsafe { nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut len) }.result().map_err(|e| format!("NVRTC: {e:?}"))?;
    let mut cubin = vec![0_u8; len];
    // SAFETY: room for the size that was just asked for.
    unsafe { nvrtc_sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) }
        .result()
        .map_err(|e| format!("NVRTC: {e:?}"))?;
    Ok(cubin)
}
