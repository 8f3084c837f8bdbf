#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays.hpp"
#include "python/bindings.hpp"
#include "python/h2m2_inputs.hpp"
#include "sim/h2m2/layout.hpp"
#include "sim/h2m2/memory.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using namespace h2m2;

Where where(const std::string& side) {
  if (side == "hbm") return Where::kHbm;
  if (side == "lpddr") return Where::kLpddr;
  throw std::invalid_argument("there is no side named " + side);
}

// The frame of each logical page, -1 where it has none.
Array<std::int64_t> table_of(const Pages& pages, const std::string& side) {
  std::vector<std::int64_t> frames(static_cast<std::size_t>(pages.logical_pages()));
  for (std::size_t page = 0; page < frames.size(); ++page) {
    const Pages::Frame frame = pages.frame(where(side), static_cast<Pages::Page>(page));
    frames[page] = frame == Pages::kNone ? -1 : static_cast<std::int64_t>(frame);
  }
  return array_of(std::span<const std::int64_t>(frames));
}

template <typename T>
Array<std::int64_t> integers(const T& values) {
  const std::vector<std::int64_t> wide(values.begin(), values.end());
  return array_of(std::span<const std::int64_t>(wide));
}

nb::typed<nb::dict, nb::str, nb::int_> dict_of(const Memory::Traffic& traffic) {
  nb::dict pages;
  pages["allocated"] = traffic.allocated;
  pages["freed"] = traffic.freed;
  pages["to_hbm"] = traffic.to_hbm;
  pages["to_lpddr"] = traffic.to_lpddr;
  return pages;
}

nb::typed<nb::dict, nb::str, nb::int_> dict_of(const Memory::Occupancy& occupancy) {
  nb::dict all;
  all["hbm_qkv"] = occupancy.hbm_qkv;
  all["hbm_kv"] = occupancy.hbm_kv;
  all["hbm_fc"] = occupancy.hbm_fc;
  all["lpddr"] = occupancy.lpddr;
  all["wasted_bytes"] = occupancy.wasted_bytes;
  return all;
}

nb::typed<nb::dict, nb::str, double> dict_of(const Room& room) {
  nb::dict all;
  all["hbm_bytes"] = room.hbm_bytes;
  all["lpddr_bytes"] = room.lpddr_bytes;
  all["qkv"] = room.unit.qkv;
  all["attention"] = room.unit.attention;
  all["fc"] = room.unit.fc;
  return all;
}

void bind_pages(nb::module_& m) {
  nb::class_<Pages>(m, "H2m2Pages", "The page tables of both memories of a board, and their free frames.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "logical_pages"_a, "hbm_frames"_a,
           "lpddr_frames"_a)
      .def_static("table_bytes", &Pages::table_bytes, "logical_bytes"_a, "page_bytes"_a,
                  "Bytes of one side's flat table.")
      .def(
          "map",
          [](Pages& pages, const std::string& side, Pages::Page page) { pages.map(where(side), page); },
          "side"_a, "page"_a, "Put a page into a free frame of a side where it is not.")
      .def(
          "unmap",
          [](Pages& pages, const std::string& side, Pages::Page page) { pages.unmap(where(side), page); },
          "side"_a, "page"_a, "Give the page's frame on this side back.")
      .def(
          "move", [](Pages& pages, Pages::Page page, const std::string& to) { pages.move(page, where(to)); },
          "page"_a, "to"_a, "From the other side to this one, where the page is not yet.")
      .def("table", &table_of, "side"_a, "The frame of each logical page, -1 where it has none.")
      .def(
          "free", [](const Pages& pages, const std::string& side) { return pages.free(where(side)); },
          "side"_a, "How many frames of this side are free.")
      .def("check_integrity", &Pages::check_integrity,
           "Recount everything; RuntimeError says what is wrong.");
}

void bind_token_slots(nb::module_& m) {
  using Slots = TokenSlots;
  nb::class_<Slots>(m, "H2m2TokenSlots", "Which token slots of a board's KV columns the requests hold.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "columns"_a, "slots_of_column"_a,
           "row_tokens"_a)
      .def("join", &Slots::join, "request"_a, "tokens"_a, "A request comes with so many tokens.")
      .def("grow", &Slots::grow, "One token more for every request.")
      .def("leave", &Slots::leave, "request"_a, "A request goes; its slots are free again.")
      .def("compact", &Slots::compact,
           "Copy tokens into lower free slots where that empties columns; how many.")
      .def(
          "requests", [](const Slots& slots) { return integers(slots.requests()); },
          "The requests in the order in which they grow.")
      .def(
          "slots",
          [](const Slots& slots, TokenSlots::Request request) { return integers(slots.slots(request)); },
          "request"_a, "A request's slots in token order.")
      .def(
          "live",
          [](const Slots& slots) {
            std::vector<std::int64_t> live;
            for (std::int64_t column = 0; column < slots.columns(); ++column) {
              live.push_back(slots.live(column));
            }
            return integers(live);
          },
          "Tokens in each column.")
      .def_prop_ro("tokens", &Slots::tokens, "Tokens of all requests.")
      .def_prop_ro("rows", &Slots::rows, "Rows that they fill, request by request.")
      .def_prop_ro("free", &Slots::free, "Slots that are left.")
      .def_prop_ro("columns_in_use", &Slots::columns_in_use, "Columns that hold a token.")
      .def("check_integrity", &Slots::check_integrity,
           "Recount everything; RuntimeError says what is wrong.");
}

void bind_memory(nb::module_& m) {
  nb::class_<Memory>(m, "H2m2Memory", "The paged memory of a board: weights and KV, mapped to its two sides.")
      .def(
          "__init__",
          [](Memory* self, const nb::dict& board, const nb::dict& shape, std::int64_t kv_columns) {
            new (self) Memory(board_of(board), shape_of(shape), kv_columns);
          },
          "board"_a, "shape"_a, "kv_columns"_a)
      .def_static(
          "slots_of_column",
          [](const nb::dict& board, const nb::dict& shape) {
            return Memory::slots_of_column(board_of(board), shape_of(shape));
          },
          "board"_a, "shape"_a, "Token slots of one KV column.")
      .def_static(
          "most_columns",
          [](const nb::dict& board, const nb::dict& shape) {
            return Memory::most_columns(board_of(board), shape_of(shape));
          },
          "board"_a, "shape"_a, "KV columns that there is always a mapping for; 0 if the model does not fit.")
      .def("join", &Memory::join, "request"_a, "tokens"_a, "A request comes with so many tokens.")
      .def("grow", &Memory::grow, "One token more for every request.")
      .def("leave", &Memory::leave, "request"_a, "A request goes; its token slots are free again.")
      .def("compact", &Memory::compact,
           "Copy KV within each side where that empties columns; how many tokens.")
      .def(
          "apply",
          [](Memory& memory, int qkv, int attention, int fc, bool whole_layers) {
            return dict_of(memory.apply({qkv, attention, fc, whole_layers}));
          },
          "qkv"_a, "attention"_a, "fc"_a, "whole_layers"_a = false,
          "Allocate, free and move pages as the mapping says; the pages of each.")
      .def(
          "room", [](const Memory& memory) { return dict_of(memory.room()); },
          "What a mapping has to fit in: bytes of both sides and of one head of each sublayer.")
      .def(
          "occupancy", [](const Memory& memory) { return dict_of(memory.occupancy()); },
          "Pages by side and sublayer, and bytes that are allocated and hold nothing.")
      .def(
          "table",
          [](const Memory& memory, const std::string& side) { return table_of(memory.pages(), side); },
          "side"_a, "The frame of each logical page, -1 where it has none.")
      .def(
          "free",
          [](const Memory& memory, const std::string& side) { return memory.pages().free(where(side)); },
          "side"_a, "How many frames of this side are free.")
      .def_prop_ro("tokens", &Memory::tokens, "Tokens of all requests.")
      .def_prop_ro("rows", &Memory::rows, "Rows that they fill in matrix-vector units.")
      .def_prop_ro(
          "columns", [](const Memory& memory) { return memory.slots().columns_in_use(); },
          "KV columns that hold a token.")
      .def("check_integrity", &Memory::check_integrity,
           "Recount everything; RuntimeError says what is wrong.");
}

}  // namespace

void bind_h2m2_memory(nb::module_& m) {
  nb::exception<NoRoom>(m, "H2m2NoRoomError", PyExc_RuntimeError);
  bind_pages(m);
  bind_token_slots(m);
  bind_memory(m);
  m.def(
      "h2m2_reserve",
      [](const nb::dict& board, const nb::dict& shape) {
        const Reserve reserve = reserve_of(board_of(board), shape_of(shape));
        return std::pair(reserve.hbm_frames, reserve.lpddr_frames);
      },
      "board"_a, "shape"_a,
      "Frames of HBM and LPDDR that are kept free so that what a policy finds to fit does.");
  m.def(
      "h2m2_waste_by_request",
      [](const nb::dict& board, const nb::dict& shape, std::int64_t batch) {
        return waste_by_request(board_of(board), shape_of(shape), batch);
      },
      "board"_a, "shape"_a, "batch"_a,
      "Bytes lost on each side, on average, if each request's K and V of each layer were paged for "
      "themselves.");
  m.def(
      "h2m2_waste_of_activations",
      [](const nb::dict& board, const nb::dict& shape, std::int64_t batch) {
        return waste_of_activations(board_of(board), shape_of(shape), batch);
      },
      "board"_a, "shape"_a, "batch"_a,
      "Bytes by the paper's equation 2 for a tensor of batch x hidden in each layer.");
}

}  // namespace lamina
