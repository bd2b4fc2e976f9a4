// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include "tests/torch/support.h"

namespace ronde_test {

/// A type of the program's own, with LibTorch's operators, which fail for some texts: reading does
/// on rank 1.
struct Note {
  std::string text;
  at::Tensor tensor;
};

inline torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                   const Note& note) {
  if (note.text == "unwritable") throw std::runtime_error("this note cannot be written");
  archive.write("text", c10::IValue(note.text));
  archive.write("tensor", note.tensor);
  return archive;
}

inline torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                  Note& note) {
  c10::IValue text;
  archive.read("text", text);
  note.text = text.toStringRef();
  if (ronde::rank() == 1) {
    // Begins like texts of Ronde.
    if (note.text == "unreadable") throw std::runtime_error("rank 1: this note cannot be read");
    if (note.text == "unreadable without a text") throw std::runtime_error("");
    if (note.text == "unreadable by a number") throw 1;
  }
  archive.read("tensor", note.tensor);
  return archive;
}

/// A tensor whose values, shape and dtype depend on the rank.
inline at::Tensor own_tensor(int rank) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kLong, at::kBFloat16, at::kBool};
  return normal({rank + 1, 3}, 7 + rank).to(dtypes[static_cast<std::size_t>(rank) % dtypes.size()]);
}

/// Equal in everything; undefined tensors, too.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.device() == b.device() && a.requires_grad() == b.requires_grad() && same_bits(a, b);
}

inline bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return same(x, y); });
}

inline bool same(const Note& a, const Note& b) {
  return a.text == b.text && same(a.tensor, b.tensor);
}

inline bool same(const c10::IValue& a, const c10::IValue& b) {
  return torch::pickle_save(a) == torch::pickle_save(b);
}

template <typename T>
requires(ronde::detail::Bytes<T>) bool same(const T& a, const T& b) {
  return a == b;
}

}  // namespace ronde_test
