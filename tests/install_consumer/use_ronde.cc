// SPDX-License-Identifier: Apache-2.0
// The free functions without LibTorch; started without a launcher it is a group of one rank.
#include <ronde/ronde.h>

#include <iostream>

int main() {
  ronde::init();
  ronde::barrier();
  std::cout << "rank " << ronde::rank() << " of " << ronde::size() << '\n'
            << ronde::stats() << '\n';
  const bool alone = ronde::size() == 1 && ronde::rank() == 0;
  ronde::shutdown();
  return alone ? 0 : 1;
}
