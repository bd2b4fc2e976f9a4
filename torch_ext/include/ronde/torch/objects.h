// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ronde/options.h"
#include "ronde/torch/object_codec.h"

namespace ronde {

/// Options of gather_object: `root` is the rank that gets the objects.
using GatherOptions = BroadcastOptions;

// Objects: std::string and std::vector of char, signed or unsigned char or std::byte; at::Tensor
// (also undefined) and std::vector<at::Tensor>; c10::IValue, hence numbers, texts, lists and
// dictionaries; modules and their holders; optimizers; and every type with operator<< into a
// torch::serialize::OutputArchive and operator>> from an InputArchive. Sizes may differ between
// ranks and calls. Autograd's history is not sent.
//
// All are collective over the process set: its ranks call them with objects of one type. Concurrent
// calls on several threads need different names. The timeout applies to each operation within.
//
// Errors: UsageError on all ranks, with what each had, if types or roots differ, or if an object
// cannot be encoded or loaded on one of them; UsageError at once on a rank outside the set.
// GroupError if the group is dead.

/// Copies the root's object to every rank.
///
/// A value (neither a module nor an optimizer) is replaced once every rank could load its own.
/// Tensors are placed on the device of the tensor that they replace (in a list, the first), else on
/// the CPU; those in an IValue always on the CPU.
///
/// A module or optimizer keeps its identity and its devices; the ranks compare types, names, shapes
/// and dtypes first. Like LibTorch's load, this gives a module's parameters and buffers new memory;
/// broadcast_parameters keeps theirs. If one rank cannot load, parameters, buffers and the
/// state of optimizers are as before on all, and so is an object with operators but no default
/// constructor, by loading what it had saved before. Other changes by a module's own load() are not
/// undone.
template <typename T>
void broadcast_object(T& object, const BroadcastOptions& options = {}) {
  detail::check_object<T>();
  if constexpr (detail::Object<T>) {
    detail::broadcast_object(detail::codec_of_object(object), options);
  }
}

/// Returns the objects of all ranks, in rank order, with tensors on the CPU. Not for
/// modules and optimizers: see save_bytes.
template <typename T>
std::vector<T> allgather_object(const T& object, const AllgatherOptions& options = {}) {
  std::vector<T> all;
  detail::allgather_object(detail::list_codec(object, all), options);
  return all;
}

/// Returns the objects of all ranks on the root; the result is empty elsewhere.
template <typename T>
std::vector<T> gather_object(const T& object, const GatherOptions& options = {}) {
  std::vector<T> all;
  detail::gather_object(detail::list_codec(object, all), options);
  return all;
}

/// Returns the object's bytes behind its type and a checksum. Local. Throws UsageError with
/// LibTorch's words.
template <typename T>
std::string save_bytes(const T& object) {
  detail::check_object<T>();
  // Encoding does not change the object.
  return detail::save_object(detail::codec_of_object(const_cast<T&>(object)));
}

/// Changes `object` to the one that save_bytes got, as broadcast_object does. Local. Throws
/// UsageError if the bytes are of another type, do not fit, or are damaged, and leaves the object
/// as it was (but see there).
template <typename T>
void load_bytes(T& object, std::string bytes) {
  detail::check_object<T>();
  detail::load_object(detail::codec_of_object(object), std::move(bytes));
}

}  // namespace ronde
