// SPDX-License-Identifier: Apache-2.0
// use_ronde [ranks]
//
// The free functions without LibTorch; started without a launcher it is a group of one rank.
#include <ronde/ronde.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  const int expected = argc > 1 ? std::atoi(argv[1]) : 1;
  ronde::init();
  ronde::barrier();
  std::cout << "rank " << ronde::rank() << " of " << ronde::size() << '\n'
            << ronde::stats() << '\n';
  const bool right = ronde::size() == expected && ronde::rank() < expected;
  ronde::shutdown();
  return right ? 0 : 1;
}
