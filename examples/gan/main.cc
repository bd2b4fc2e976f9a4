// SPDX-License-Identifier: Apache-2.0
// A generator and a discriminator, each with an optimizer of its own.
#include <ronde/torch.h>

#include <cstdio>
#include <vector>

#include "common/data/files.h"
#include "common/program.h"
#include "gan_options.h"
#include "train.h"

namespace gan {
namespace {

int run(const Options& options) {
  const bool writes = ronde::rank() == 0 && !options.losses.empty();
  if (writes) example::prepare_file(options.losses, "--losses");
  torch::manual_seed(options.seed);
  const Networks networks = make_networks();
  const std::vector<double> losses = train(networks, options);
  ronde::check_replicas(*networks.generator);
  ronde::check_replicas(*networks.discriminator);
  if (ronde::rank() == 0) {
    std::printf("%d ranks hold the same networks to the last bit\n", ronde::size());
  }
  if (writes) example::write_csv(options.losses, losses, 2);
  return 0;
}

}  // namespace
}  // namespace gan

int main(int argc, char** argv) {
  return example::run_program("gan", argc, argv, [](int count, const char* const* words) {
    return gan::run(gan::parse_options(count, words, example::ranks_to_parse_for()));
  });
}
