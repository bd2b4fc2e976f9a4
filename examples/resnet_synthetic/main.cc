// SPDX-License-Identifier: Apache-2.0
// Trains ResNet on synthetic data and prints images per second, or the scaling efficiency.
#include "common/program.h"
#include "workload.h"

int main(int argc, char** argv) {
  return example::run_program(
      "resnet_synthetic", argc, argv, [](int count, const char* const* words) {
        const resnet::Options options = resnet::parse_options(count, words);
        example::run_benchmark(resnet::make_workload(options), options.benchmark);
        return 0;
      });
}
