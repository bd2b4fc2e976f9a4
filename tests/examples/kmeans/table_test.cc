// SPDX-License-Identifier: Apache-2.0
#include "common/table.h"

#include <zlib.h>

#include <catch2/catch.hpp>

#include "tests/examples/input_error.h"
#include "tests/support/processes/temporary_folder.h"

namespace example {
namespace {

using Catch::Contains;
using namespace ronde::test;
using Numbers = std::vector<double>;

void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  CHECK(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == int(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

Table read(const std::string& text, const TableFormat& format = {}, const Part& part = {}) {
  const TemporaryFolder folder;
  write_bytes(folder / "t.csv", text);
  return read_table(folder / "t.csv", format, part);
}

}  // namespace

TEST_CASE("numbers are read however a program has written them, labels from the last column") {
  const Table plain = read("1, -2.5 ,+3\r\n\r\n4e2,\t.5,6");
  CHECK(plain.rows == 2);
  CHECK(plain.columns == 3);
  CHECK(plain.values == Numbers{1, -2.5, 3, 400, 0.5, 6});
  CHECK(plain.labels.empty());

  const Table labelled =
      read("x,y,who\n1,2, Ann\n3,4,Bo\n5,6,Ann\n7,8,\n", {.header = true, .labels = true});
  CHECK(labelled.rows == 4);
  CHECK(labelled.columns == 2);
  CHECK(labelled.values == Numbers{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(labelled.label_names == std::vector<std::string>{"Ann", "Bo", ""});
  CHECK(labelled.labels == std::vector<std::int32_t>{0, 1, 0, 2});
}

TEST_CASE("each rank has every so manieth row, and all labels") {
  for (int rank = 0; rank < 4; ++rank) {
    const Table table = read("0,l\n1,l\n2,l\n3,l\n4,l\n5,l\n", {.labels = true}, {rank, 4});
    CHECK(table.rows == 6);
    CHECK(table.labels.size() == 6);
    CHECK(table.values == (rank < 2 ? Numbers{1.0 * rank, 4.0 + rank} : Numbers{1.0 * rank}));
    CHECK(Part{rank, 4}.count(6) == static_cast<std::int64_t>(table.values.size()));
  }
}

TEST_CASE("a compressed file reads as the plain one does, also over many blocks") {
  const TemporaryFolder folder;
  std::string text;
  for (int row = 0; row < 30000; ++row) text += std::to_string(row) + ",0.25\n";
  write_bytes(folder / "plain.csv", text);
  write_gzip(folder / "packed", text);
  const Table plain = read_table(folder / "plain.csv", {}, {});
  const Table packed = read_table(folder / "packed", {}, {});
  CHECK(plain.rows == 30000);
  CHECK(plain.values[59998] == 29999);
  CHECK(plain.values == packed.values);
  CHECK(plain.checksum == packed.checksum);
  CHECK(plain.checksum != read("1,2\n").checksum);
}

TEST_CASE("what is no table is refused with line and field") {
  struct Case {
    std::string text;
    TableFormat format;
    std::string refusal;
  };
  const TableFormat labels{.header = false, .labels = true};
  const TableFormat header{.header = true, .labels = false};
  for (const Case& one : {Case{"", {}, "holds no rows"}, Case{"\n \n", {}, "holds no rows"},
                          Case{"a,b\n", header, "holds no rows after its header"},
                          Case{"1,2\n\n3,4,5\n", {}, "line 3: has 3 fields, line 1 has 2"},
                          Case{"1,2\n3\n", {}, "line 2: has 1 fields, line 1 has 2"},
                          Case{"1,2\n3,\n", {}, "line 2: field 2: '' is no finite number"},
                          Case{"1,2x\n", {}, "line 1: field 2: '2x' is no finite number"},
                          Case{"a,b\n1,2\n", {}, "Then give --header"},
                          Case{"1,nan\n", {}, "field 2: 'nan' is no finite number"},
                          Case{"inf,1\n", {}, "field 1: 'inf' is no finite number"},
                          Case{"1e999,1\n", {}, "field 1: '1e999' is no finite number"},
                          Case{"++1,1\n", {}, "field 1: '++1' is no finite number"},
                          Case{"label\n", labels, "line 1: one field, a label, and no number"}}) {
    INFO(one.text);
    CHECK_THAT(input_error([&] { read(one.text, one.format); }),
               Contains(one.refusal) && Contains("t.csv"));
  }
}

TEST_CASE("files that cannot be read are refused by name") {
  const TemporaryFolder folder;
  std::string text;
  for (int row = 0; row < 1000; ++row) text += std::to_string(row * row) + "\n";
  write_gzip(folder / "whole.gz", text);
  std::string bytes = read_text(folder / "whole.gz");
  write_bytes(folder / "half.gz", bytes.substr(0, bytes.size() / 2));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  write_bytes(folder / "damaged.gz", bytes);
  for (const std::string refusal :
       {"none.csv: cannot be opened: No such file", ": cannot be read",
        "half.gz: truncated or damaged", "damaged.gz: truncated or damaged"}) {
    const std::string file = folder.path().string() + "/" + refusal.substr(0, refusal.find(':'));
    CHECK_THAT(input_error([&] { read_table(file, {}, {}); }),
               Contains(folder.path().string() + "/" + refusal));
  }
}

}  // namespace example
