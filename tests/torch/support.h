// SPDX-License-Identifier: Apache-2.0
#pragma once

// LibTorch defines a CHECK of its own; in the tests it is Catch2's, which may have come before.
#include <ronde/torch.h>
#ifndef INTERNAL_CATCH_TEST
#undef CHECK
#endif
#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#endif

#include <functional>
#include <source_location>
#include <string>
#include <vector>

namespace ronde_test {

using ronde::AllreduceOptions;
using ronde::Compression;
using ronde::DistributedOptimizer;
using ronde::DistributedOptimizerOptions;
using ronde::ProcessSet;
using ronde::ReduceOp;
using ronde::TensorWork;
using Tensors = std::vector<at::Tensor>;
using Names = torch::OrderedDict<std::string, at::Tensor>;

/// Initialises Ronde for the rest of the process, and shuts it down at its end. In torch_tests each
/// case without the tag [own] begins with it (initialized_cases.cc).
void use_ronde();

/// The text of what `function` throws; empty if that is nothing.
std::string thrown_text(const std::function<void()>& function);

/// The text of the UsageError that `function` throws; fails the case if it throws none.
std::string usage_error(const std::function<void()>& function);

/// Fails the case unless `text` has all `parts`.
void check_contains(const std::string& text, const std::vector<std::string>& parts,
                    std::source_location where = std::source_location::current());

/// Fails the case unless `function` throws a UsageError whose text, which is returned, has all
/// `parts`.
std::string check_refused(const std::function<void()>& function,
                          const std::vector<std::string>& parts,
                          std::source_location where = std::source_location::current());

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Whether every rank has the same shape, dtype and bits. Collective; all ranks get the same
/// answer. It comes by memory that they share, not by Ronde.
bool same_on_all_ranks(const at::Tensor& tensor);
bool same_on_all_ranks(const std::string& bytes);

/// Returns the elements in row-major order as bytes.
std::string bytes_of(const at::Tensor& tensor);

/// Equal dtypes, shapes and bytes.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bytes_of(a) == bytes_of(b);
}

/// All parameters as one vector of doubles, complex ones as their parts.
at::Tensor flatten(const Tensors& tensors);

/// The counter `name` of `part` of Ronde's stats; fails the case if there is none.
std::uint64_t counted(const std::string& part, const std::string& name);

/// Normal numbers that depend on `seed` alone.
at::Tensor normal(at::IntArrayRef sizes, std::int64_t seed, at::ScalarType dtype = at::kDouble);

/// Gives the parameters normal numbers times `factor`, each those of the next seed.
void fill_normal(const Tensors& parameters, std::int64_t seed, double factor = 1.0);

/// In f64.
inline at::Tensor full(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::kDouble);
}

/// A parameter of ones, in f64.
inline at::Tensor ones_parameter(at::IntArrayRef sizes) {
  return full(sizes, 1.0).requires_grad_();
}

/// What the ranks' tensors, stacked, reduce to.
at::Tensor reduced(ReduceOp op, const at::Tensor& stacked);

/// Equal shapes, and values within `tolerance`, absolute and relative; in double.
bool near(const at::Tensor& a, const at::Tensor& b, double tolerance);

/// Returns whether the lists have equal lengths, dtypes, shapes and values.
bool equal(const Tensors& a, const Tensors& b);

/// The status of a child of fork() that exits with what `child` returns.
int status_of_child(const std::function<int()>& child);

inline std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

/// `of(rank)` for each rank.
template <typename Function>
auto by_rank(const Function& of) {
  std::vector<decltype(of(0))> all;
  for (int rank = 0; rank < ronde::size(); ++rank) all.push_back(of(rank));
  return all;
}

/// The element of this rank.
template <typename T>
const T& mine_of(const std::vector<T>& by_rank) {
  return by_rank.at(index(ronde::rank()));
}

inline double mean_rank() {
  return (ronde::size() - 1) / 2.0;
}

/// 1 + 2 + ... + size
inline double sum_to_size() {
  return ronde::size() * (ronde::size() + 1) / 2.0;
}

/// A DistributedOptimizer with an SGD of its own.
inline DistributedOptimizer wrapped_sgd(const Names& names,
                                        DistributedOptimizerOptions options = {},
                                        const torch::optim::SGDOptions& of_sgd = 1.0) {
  return {std::make_shared<torch::optim::SGD>(names.values(), of_sgd), names, std::move(options)};
}

/// Returns an archive that reads what was written into `archive`.
torch::serialize::InputArchive reread(torch::serialize::OutputArchive& archive);

}  // namespace ronde_test
