//! Checks the platform and, with feature `torch`, builds the C++ shim against the libtorch that `LIBTORCH` names.

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    println!("cargo:rerun-if-changed=src/device/shim.cpp");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    assert!(
        os == "linux" && arch == "x86_64",
        "blockstream-tui builds for Linux on x86-64 (WSL2 included), not for {os} on {arch}"
    );
    #[cfg(feature = "torch")]
    shim();
}

/// Compiles the shim (no CUDA header needed), links `torch_cpu` and `c10` only, and sets the rpath.
#[cfg(feature = "torch")]
fn shim() {
    let root = std::env::var_os("LIBTORCH")
        .map(std::path::PathBuf::from)
        .expect("LIBTORCH is not set; run `make setup` once, or set it to a libtorch 2.11.0 folder");
    let lib = root.join("lib");
    assert!(
        lib.join("libtorch_cpu.so").exists(),
        "no libtorch in '{}'; run `make setup` once, or set LIBTORCH to a libtorch 2.11.0 folder",
        root.display()
    );
    cc::Build::new()
        .cpp(true)
        .warnings(false)
        .flag("-std=c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(root.join("include"))
        .include(root.join("include/torch/csrc/api/include"))
        .file("src/device/shim.cpp")
        .compile("bstui_shim");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}
