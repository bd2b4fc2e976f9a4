// SPDX-License-Identifier: Apache-2.0
// What rank 0 says of the address at which it is awaited, where nobody comes.
#include <sched.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "backends/socket/launched/launched_start.h"
#include "tests/support/processes/reserved_port.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

bool is_called_foreign(const std::string& address, const ReservedPort& port) {
  LaunchedOptions options;
  options.launch.rank = 0;
  options.launch.size = 2;
  options.launch.job = "alone";
  options.launch.root_host = address;
  options.launch.port = port.number();
  options.init_timeout_s = 0.01;
  const std::string text = text_of<GroupError>([&] { launched_transport_factory(options)(); });
  check_contains(text, "Rank 0 is awaited at " + address);
  return text.find("no address of the host that rank 0 is on") != std::string::npos;
}

TEST_CASE("rank 0's own address is not called foreign: link-local, as IPv6, of a link down") {
  const ReservedPort port;  // of the host, which the thread may leave
  run_ranks(1, [&](int) {
    std::vector<std::string> own = {"127.0.0.1", "::ffff:127.0.0.1"};
    // A network of this thread's own, whose interface is down; the host's where that is refused.
    if (::unshare(CLONE_NEWNET) == 0) {
      check(std::system("ip addr add 10.9.9.9/32 dev lo && ip addr add 169.254.9.9/32 dev lo && "
                        "ip addr add fe80::9/64 dev lo && ip addr add fd00::9/64 dev lo") == 0,
            "addresses of the interface");
      own.insert(own.end(), {"10.9.9.9", "::ffff:10.9.9.9", "169.254.9.9", "::ffff:169.254.9.9",
                             "fe80::9", "fe80::9%lo", "fd00::9"});
    }
    for (const std::string& address : own) {
      check(!is_called_foreign(address, port), address + " is rank 0's own");
    }
    for (const char* const address : {"203.0.113.1", "::ffff:203.0.113.1", "fe80::beef:1"}) {
      check(is_called_foreign(address, port), std::string(address) + " is not");
    }
  });
}

}  // namespace
