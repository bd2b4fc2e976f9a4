// SPDX-License-Identifier: Apache-2.0
#include "digits.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/program.h"
#include "common/table.h"

namespace example {
namespace {

constexpr std::int64_t kImages = 1797;
constexpr std::int64_t kHeldOut = 357;
constexpr std::int64_t kSide = 8;
constexpr double kWhite = 16;  // the largest value of a pixel

Table read_file() {
  const std::filesystem::path path = digits_path();
  if (!std::filesystem::exists(path)) {
    throw InputError("the handwritten digits are not at " + path.string() +
                     ": run scripts/deps.sh, which fetches them");
  }
  Table table = read_table(path, {.header = false, .labels = true}, {});
  if (table.rows != kImages || table.columns != kSide * kSide || table.label_names.size() != 10) {
    throw InputError("file " + path.string() +
                     " does not hold 1797 images of 8x8 pixels, each with "
                     "a digit: remove it and run scripts/deps.sh, which fetches them");
  }
  return table;
}

/// Returns the digits. A table has labels as words, numbered in the order of their appearance.
torch::Tensor read_labels(const Table& table) {
  std::vector<std::int64_t> labels;
  for (const std::int32_t index : table.labels) {
    labels.push_back(std::stoll(table.label_names[static_cast<std::size_t>(index)]));
  }
  return torch::tensor(labels, torch::kInt64);
}

}  // namespace

Digits::Digits(torch::Tensor images, torch::Tensor labels)
    : images_(std::move(images)), labels_(std::move(labels)) {}

torch::data::Example<> Digits::get_batch(torch::ArrayRef<std::size_t> indices) {
  const std::vector<std::int64_t> rows(indices.begin(), indices.end());
  const torch::Tensor index = torch::tensor(rows, torch::kInt64);
  return {images_.index_select(0, index), labels_.index_select(0, index)};
}

std::optional<std::size_t> Digits::size() const {
  return static_cast<std::size_t>(labels_.size(0));
}

torch::data::Example<> Digits::part(int part, int parts) const {
  return {images_.slice(0, part, std::nullopt, parts), labels_.slice(0, part, std::nullopt, parts)};
}

DigitSets read_digits() {
  const Table table = read_file();
  const torch::Tensor images =
      torch::tensor(table.values, torch::kFloat64).div_(kWhite).view({-1, 1, kSide, kSide});
  const torch::Tensor labels = read_labels(table);
  const torch::Tensor row = torch::arange(kImages);
  const torch::Tensor is_held_out = (row % 5 == 0).logical_and(row < 5 * kHeldOut);
  const auto choose = [&](const torch::Tensor& mask) {
    return Digits(images.index({mask}), labels.index({mask}));
  };
  return {choose(is_held_out.logical_not()), choose(is_held_out)};
}

}  // namespace example
