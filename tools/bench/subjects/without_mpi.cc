// SPDX-License-Identifier: Apache-2.0
// For builds without MPI.
#include "tools/bench/subjects/peers.h"

namespace ronde::tool {

std::unique_ptr<Peers> make_peers(bool oversubscribed) {
  return make_socket_peers(oversubscribed);
}

std::unique_ptr<Subject> make_plain_mpi() {
  return nullptr;
}

void let_mpi_be_fast() {}

}  // namespace ronde::tool
