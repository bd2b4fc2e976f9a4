// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include "ronde/error.h"
#include "tools/grid/volume.h"

namespace ronde::tool {
namespace {

std::uint64_t number_of(const std::string& text, const std::string& where) {
  constexpr std::uint64_t kMost = 200'000;  // so that products have 64 bits
  const bool is_number = !text.empty() && text.size() <= 6 &&
                         text.find_first_not_of("0123456789") == std::string::npos;
  const std::uint64_t number = is_number ? std::stoull(text) : 0;
  if (number > 0 && number <= kMost) return number;
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

std::vector<Layer> resnet50() {
  std::vector<Layer> layers = {{3, 64, 49, 224 * 224, 112 * 112, 2}};
  std::uint64_t in = 64, places = 56 * 56, width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      const std::uint64_t before = places;
      if (block == 0 && width > 64) places /= 4;
      layers.push_back({in, width, 1, before, before, 2});
      layers.push_back({width, width, 9, before, places, 2});
      layers.push_back({width, 4 * width, 1, places, places, 2});
      if (block == 0) layers.push_back({in, 4 * width, 1, before, places, 2, true});
      in = 4 * width;
    }
    width *= 2;
  }
  layers.push_back({.inputs = in, .outputs = 1000});
  return layers;
}

std::vector<Layer> edsr() {
  constexpr std::uint64_t kPlaces = 48 * 48;
  std::vector<Layer> layers(36, {64, 64, 9, kPlaces, kPlaces});
  layers.front().inputs = 3;
  layers[34].outputs = 256;
  layers.back() = {64, 3, 9, 4 * kPlaces, 4 * kPlaces};
  return layers;
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
                   "\" is neither resnet50, edsr, mlp:WIDTH,WIDTH,... nor a file with layers");
}

}  // namespace

std::vector<Layer> layers_of(const std::string& model) {
  if (model == "resnet50") return resnet50();
  if (model == "edsr") return edsr();
  return model.starts_with("mlp:") ? mlp(model) : read_layers(model);
}

}  // namespace ronde::tool
