// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <fstream>
#include <sstream>

#include "ronde/error.h"
#include "tools/grid/volume.h"

namespace ronde::tool {
namespace {

std::uint64_t number_of(const std::string& text, const std::string& where) {
  constexpr std::uint64_t kMost = 200'000;  // so that products have 64 bits
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const bool is_number = std::from_chars(text.data(), end, number).ptr == end;
  if (is_number && number > 0 && number <= kMost) return number;
  throw UsageError(where + ": \"" + text + "\" is no number from 1 to " + std::to_string(kMost));
}

std::vector<Layer> mlp(const std::string& model) {
  std::vector<Layer> layers;
  std::istringstream words(model.substr(model.find(':') + 1));
  std::uint64_t before = 0;
  for (std::string word; std::getline(words, word, ',');) {
    const std::uint64_t width = number_of(word, "--model " + model);
    if (before != 0) layers.push_back({.inputs = before, .outputs = width});
    before = width;
  }
  if (!layers.empty()) return layers;
  throw UsageError("--model " + model + ": give two or more widths, as in mlp:784,1024,10");
}

std::vector<Layer> read_layers(const std::string& path) {
  std::ifstream file(path);
  std::vector<Layer> layers;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = "--model " + path + ", line " + std::to_string(number);
    std::istringstream words(line);
    std::vector<std::uint64_t> n;
    for (std::string word; words >> word;) n.push_back(number_of(word, where));
    if (n.size() < 2 || n.size() == 4 || n.size() > 6) {
      throw UsageError(where +
                       ": a layer is \"inputs outputs [kernel [places_in places_out "
                       "[vectors]]]\", and here are " +
                       std::to_string(n.size()) + " numbers");
    }
    n.resize(6, 1);
    layers.push_back({n[0], n[1], n[2], n[3], n[4], n[5]});
  }
  if (file.eof() && !layers.empty()) return layers;
  throw UsageError("--model: \"" + path +
                   "\" is neither resnet18, resnet50, edsr, edsr-full, mlp:WIDTH,WIDTH,... nor a "
                   "file with layers");
}

}  // namespace

std::vector<Layer> layers_of(const std::string& model) {
  if (model.starts_with("mlp:")) return mlp(model);
  for (const GradientList& list : gradient_lists()) {
    if (list.model == model) return list.layers;
  }
  return read_layers(model);
}

}  // namespace ronde::tool
