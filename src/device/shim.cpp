// What tch does not reach: autograd with output gradients, allocator figures, stream control,
// deterministic mode, scaled GEMMs into given memory and attention kernels. No CUDA header is needed: everything
// goes through libtorch's device-neutral interfaces, which a late-loaded libtorch_cuda serves.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

namespace {
thread_local std::string last_error;

// 0 ok, 1 error, 2 out of device memory; the text waits in last_error.
template <typename F> int guarded(F f) {
  try {
    f();
    return 0;
  } catch (const c10::OutOfMemoryError& e) {
    last_error = e.what_without_backtrace();
    return 2;
  } catch (const c10::Error& e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "unknown C++ exception";
  }
  return 1;
}

// Calls under it go straight to the backend: nothing is recorded, and autograd's wrappers, which refuse the undefined
// tensors that attention's backward takes, are passed by.
using Unrecorded = at::AutoDispatchBelowADInplaceOrView;

const at::Tensor& tensor(void* p) { return *static_cast<at::Tensor*>(p); }

// [B,S,H,D] as [B,H,S,D], a view.
at::Tensor heads_first(void* p) { return tensor(p).transpose(1, 2); }

// [B,H,S,D] as a new, dense [B,S,H,D].
at::Tensor* tokens_first(const at::Tensor& t) { return new at::Tensor(t.transpose(1, 2).contiguous()); }
}  // namespace

extern "C" {

const char* bstui_error() { return last_error.c_str(); }

// Gradients of outputs (with given output gradients) with respect to inputs. result[i] is a new
// tensor owned by the caller, or null where an input was not reached.
int bstui_grad(void** outputs, void** grads, int n_out, void** inputs, int n_in, void** result) {
  return guarded([&] {
    torch::autograd::variable_list o, g, i;
    for (int k = 0; k < n_out; k++) {
      o.push_back(tensor(outputs[k]));
      g.push_back(tensor(grads[k]));
    }
    for (int k = 0; k < n_in; k++) i.push_back(tensor(inputs[k]));
    auto r = torch::autograd::grad(o, i, g, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (int k = 0; k < n_in; k++) result[k] = r[k].defined() ? new at::Tensor(r[k]) : nullptr;
  });
}

// out: allocated now, allocated peak, reserved now, reserved peak (bytes).
int bstui_memory(int device, int64_t* out) {
  return guarded([&] {
    auto s = at::accelerator::getDeviceStats(device);
    out[0] = s.allocated_bytes[0].current;
    out[1] = s.allocated_bytes[0].peak;
    out[2] = s.reserved_bytes[0].current;
    out[3] = s.reserved_bytes[0].peak;
  });
}

int bstui_reset_peak(int device) {
  return guarded([&] { at::accelerator::resetPeakStats(device); });
}

int bstui_empty_cache() {
  return guarded([] { at::accelerator::emptyCache(); });
}

void bstui_deterministic(bool on) {
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
  // Filling every new tensor guards against bugs we test for otherwise, and costs bandwidth.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

// Makes a stream of torch's pool current on this thread; *handle is its native handle.
int bstui_use_pool_stream(int device, void** handle) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    c10::Stream s = guard.getStreamFromGlobalPool(c10::Device(c10::DeviceType::CUDA, device), /*isHighPriority=*/false);
    at::accelerator::setCurrentStream(s);
    *handle = at::accelerator::getCurrentStream(device).native_handle();
  });
}

int bstui_synchronize(int device) {
  return guarded([&] { at::accelerator::synchronizeDevice(device); });
}

void bstui_threads(int n) { at::set_num_threads(n); }

// Native handle of the stream that libtorch uses on this thread.
int bstui_current_stream(int device, void** handle) {
  return guarded([&] { *handle = at::accelerator::getCurrentStream(device).native_handle(); });
}

// out = beta * out + alpha * a b, in place; out may be a slice of a wider matrix. tch's addmm_ has no alpha.
int bstui_gemm(void* out, void* a, void* b, double beta, double alpha) {
  return guarded([&] {
    Unrecorded unrecorded;
    at::Tensor o = tensor(out);
    if (beta == 0.0 && alpha == 1.0) {
      at::mm_out(o, tensor(a), tensor(b));
    } else {
      o.addmm_(tensor(a), tensor(b), beta, alpha);
    }
  });
}

// out += alpha * a b with out in f32 whatever the type of a and b. On a GPU the product is never rounded.
int bstui_gemm_f32(void* out, void* a, void* b, double alpha) {
  return guarded([&] {
    Unrecorded unrecorded;
    at::Tensor o = tensor(out);
    const at::Tensor &x = tensor(a), &y = tensor(b);
    if (x.scalar_type() == at::kFloat) {
      o.addmm_(x, y, 1, alpha);
    } else if (x.is_cuda()) {
      // Some releases of libtorch add only to a tensor of the factors' type: then the product is made apart.
      static bool adds = true;
      if (adds) {
        try {
          at::addmm_out(o, o, x, y, at::kFloat, 1, alpha);
          return;
        } catch (const c10::OutOfMemoryError&) {
          throw;
        } catch (const c10::Error&) {
          adds = false;
        }
      }
      o.add_(at::mm(x, y, at::kFloat), alpha);
    } else {
      o.addmm_(x.to(at::kFloat), y.to(at::kFloat), 1, alpha);
    }
  });
}

// Causal flash attention: q [B,S,H,D], k and v [B,S,Hkv,D], last dimension dense; window_left < 0: no window.
// result: out [B,S,H,D], log-sum-exp, and the two tensors of random state that backward asks for.
int bstui_flash_forward(void* q, void* k, void* v, double scale, int64_t window_left, void** result) {
  return guarded([&] {
    Unrecorded unrecorded;
    std::optional<int64_t> left, right;
    if (window_left >= 0) { left = window_left; right = 0; }
    auto r = at::_flash_attention_forward(
        tensor(q), tensor(k), tensor(v), std::nullopt, std::nullopt, tensor(q).size(1), tensor(k).size(1),
        /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, left, right);
    result[0] = new at::Tensor(std::get<0>(r));
    result[1] = new at::Tensor(std::get<1>(r));
    result[2] = new at::Tensor(std::get<2>(r));
    result[3] = new at::Tensor(std::get<3>(r));
  });
}

// Its backward; saved is what forward gave. result: gradients of q, k and v.
int bstui_flash_backward(void* grad, void* q, void* k, void* v, void** saved, double scale, int64_t window_left,
                         void** result) {
  return guarded([&] {
    Unrecorded unrecorded;
    std::optional<int64_t> left, right;
    if (window_left >= 0) { left = window_left; right = 0; }
    auto r = at::_flash_attention_backward(
        tensor(grad), tensor(q), tensor(k), tensor(v), tensor(saved[0]), tensor(saved[1]), at::Tensor(), at::Tensor(),
        tensor(q).size(1), tensor(k).size(1), /*dropout_p=*/0.0, /*is_causal=*/true, tensor(saved[2]),
        tensor(saved[3]), scale, left, right);
    result[0] = new at::Tensor(std::get<0>(r));
    result[1] = new at::Tensor(std::get<1>(r));
    result[2] = new at::Tensor(std::get<2>(r));
  });
}

// cuDNN's causal attention over the same tensors. result: out [B,S,H,D], log-sum-exp, random state.
int bstui_cudnn_forward(void* q, void* k, void* v, double scale, bool keep, void** result) {
  return guarded([&] {
    Unrecorded unrecorded;
    auto r = at::_scaled_dot_product_cudnn_attention(heads_first(q), heads_first(k), heads_first(v), std::nullopt,
                                                     /*compute_log_sumexp=*/keep, /*dropout_p=*/0.0, /*is_causal=*/true,
                                                     /*return_debug_mask=*/false, scale);
    result[0] = tokens_first(std::get<0>(r));
    result[1] = new at::Tensor(std::get<1>(r));
    result[2] = new at::Tensor(std::get<6>(r));
    result[3] = new at::Tensor(std::get<7>(r));
  });
}

// Its backward; saved is what forward gave with keep. result: gradients of q, k and v, dense.
int bstui_cudnn_backward(void* grad, void* q, void* k, void* v, void** saved, double scale, void** result) {
  return guarded([&] {
    Unrecorded unrecorded;
    auto r = at::_scaled_dot_product_cudnn_attention_backward(
        heads_first(grad), heads_first(q), heads_first(k), heads_first(v), heads_first(saved[0]), tensor(saved[1]),
        tensor(saved[2]), tensor(saved[3]), at::Tensor(), at::Tensor(), at::Tensor(), tensor(q).size(1),
        tensor(k).size(1), /*dropout_p=*/0.0, /*is_causal=*/true, scale);
    result[0] = tokens_first(std::get<0>(r));
    result[1] = tokens_first(std::get<1>(r));
    result[2] = tokens_first(std::get<2>(r));
  });
}

// Flash attention over packed rows: q [N,H,D], k and v [N,Hkv,D], cu_seqlens I32 [rows+1]; window_left < 0: no window.
int bstui_flash_varlen(void* q, void* k, void* v, void* cu_seqlens, int64_t max_len, double scale, int64_t window_left,
                       void** out) {
  return guarded([&] {
    std::optional<int64_t> left, right;
    if (window_left >= 0) { left = window_left; right = 0; }
    auto r = at::_flash_attention_forward(
        tensor(q), tensor(k), tensor(v), tensor(cu_seqlens), tensor(cu_seqlens), max_len, max_len,
        /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, left, right);
    *out = new at::Tensor(std::get<0>(r));
  });
}
}
