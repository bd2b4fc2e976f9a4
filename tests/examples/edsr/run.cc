// SPDX-License-Identifier: Apache-2.0
#include "tests/examples/edsr/run.h"

#include <sstream>

namespace edsr::testing {

Words split(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Words Workspace::options(const std::string& output, const std::string& more,
                         const std::string& data) const {
  Words words = {"--data", (*this / data).string(), "--output", (*this / output).string()};
  const Words quick = split(
      "--blocks 1 --features 8 --patch 12 --batch 8 --min-side 32 --held-out 2 --lr 1e-3 "
      "--workers 1 " +
      more);
  words.insert(words.end(), quick.begin(), quick.end());
  return words;
}

std::string Workspace::train(int ranks, const std::string& output, const std::string& more) const {
  return ronde::test::launch_well(ranks, options(output, more));
}

std::vector<double> Workspace::losses(const std::string& output) const {
  std::istringstream lines(read_text(*this / output / "loss.csv"));
  std::string line;
  std::getline(lines, line);
  std::vector<double> losses;
  while (std::getline(lines, line)) losses.push_back(std::stod(line.substr(line.rfind(',') + 1)));
  return losses;
}

}  // namespace edsr::testing
