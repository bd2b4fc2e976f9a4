// SPDX-License-Identifier: Apache-2.0
// For builds without MPI, in which every process is alone.
#include "tools/bench/subjects/peers.h"

namespace ronde::tool {
namespace {

class Alone final : public Peers {
 public:
  void barrier() override {}
  void maximum(std::vector<double>&) override {}
  std::vector<std::string> all_of(const std::string& text) override { return {text}; }
  std::optional<std::string> thread_level() const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Peers> make_peers(bool) {
  return std::make_unique<Alone>();
}

std::unique_ptr<Subject> make_plain_mpi() {
  return nullptr;
}

void let_mpi_be_fast() {}

}  // namespace ronde::tool
