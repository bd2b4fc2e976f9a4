// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "ronde/request.h"

namespace ronde::c10d_backend {

/// The form in which Ronde moves elements of a dtype. A complex number is its real and imaginary
/// part; a dtype that Ronde lacks (fp8) is so many bytes.
struct Elements {
  DataType dtype = DataType::U8;
  std::int64_t parts = 1;  ///< of `dtype`, in each element
  bool reducible = true;   ///< false: moved as bytes
};

Elements elements_of(const at::Tensor& tensor);
/// The number of parts in all of `tensor`.
std::int64_t parts_in(const at::Tensor& tensor);

/// Throws an error that begins with `call` unless `tensor` is dense and without gaps, or row-major.
void check_tensor(const char* call, const at::Tensor& tensor, bool row_major = false);
/// Also checks that each has the dtype and device of `like`, and its size if `same_size`.
void check_like(const char* call, const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                bool same_size);

/// Sets what `op` does to the elements of `tensor`. Throws ValueError if it cannot be done to them.
void set_reduction(Request& request, const c10d::ReduceOp& op, const at::Tensor& tensor);
/// Sets the device of `request` and its current stream.
void set_device(Request& request, const at::Tensor& tensor);

/// Returns a tensor whose elements follow one another in memory: `tensor` itself, or a copy.
at::Tensor row_major(const at::Tensor& tensor);

/// The elements of several tensors as one vector: a view of them where they follow one another in
/// one storage, else memory of its own.
class Flat {
 public:
  explicit Flat(const std::vector<at::Tensor>& tensors);

  const at::Tensor& tensor() const noexcept { return flat_; }
  /// Copies the elements in, unless it is a view.
  void fill() const;
  /// Returns what copies the elements back on any thread, in the current stream of this one; empty
  /// for a view.
  std::function<void()> spill() const;

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor flat_;
  bool is_view_ = false;
};

}  // namespace ronde::c10d_backend
