#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "operators/kernels.hpp"
#include "operators/product.hpp"
#include "operators/team.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using namespace operators;

// What tensor.data_ptr() says.
using Address = std::uintptr_t;

template <typename T = std::byte>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Others may run meanwhile, if it takes longer than to let them.
template <typename F>
void compute(std::size_t rows, std::size_t width, F some) {
  if (rows * width < kAlone) return some(std::size_t{0}, rows);
  nb::gil_scoped_release released;
  share(rows, width, some);
}

// What all operators have: functions of one dtype, and how large its numbers are.
struct Native {
  Native(const std::string& dtype, const std::string& isa, int lanes = 16)
      : type(attention::dtype_named(dtype)), size(attention::bytes_of(type)) {
    const Isa widest = lanes == 4 ? Isa::kBaseline : Isa::kAvx512;
    functions = functions_for(std::min(attention::choose_isa(isa), widest), type);
  }

  Rows rows(Address at, std::size_t block_rows, std::size_t row_stride, std::size_t block_stride) const {
    return {pointer(at), block_rows, row_stride * size, block_stride * size};
  }

  DType type;
  std::size_t size;
  Functions functions;
};

struct NormOp : Native {
  NormOp(const std::string& dtype, NormShape of, const std::string& isa)
      : Native(dtype, isa, of.lanes), shape(of) {}
  NormShape shape;
};

struct RotaryOp : Native {
  RotaryOp(const std::string& dtype, RotaryShape of, const std::string& isa)
      : Native(dtype, isa), shape(of) {}
  RotaryShape shape;
};

struct ProductOp {
  const Product* product;
};

}  // namespace

void bind_operators(nb::module_& m) {
  // Conversions live as long as the process: nanobind must not report them as leaks.
  nb::set_leak_warnings(false);
  nb::class_<NormOp>(
      m, "Norm", nb::is_final(),
      R"(x / sqrt(mean(x^2) + eps) x weight over rows of `width` numbers, as torch's operators compute it.

centred: of x - mean(x). rounds_first: to dtype before it is weighted, as its product with the weight is; else only
after it. wide_weight: the weight is float32. lanes: of the vectors whose order torch's sums go by (4, 8, 16). isa: as
of an AttentionWorker.)")
      .def(
          "__init__",
          [](NormOp* self, const std::string& dtype, std::size_t width, float eps, bool centred,
             bool rounds_first, bool wide_weight, int lanes, const std::string& isa) {
            if (lanes != 4 && lanes != 8 && lanes != 16) throw nb::value_error("lanes are 4, 8 or 16");
            if (width == 0) throw nb::value_error("a row has at least one number");
            new (self) NormOp(dtype, {width, eps, centred, rounds_first, wide_weight, lanes}, isa);
          },
          "dtype"_a, "width"_a, "eps"_a, "centred"_a, "rounds_first"_a, "wide_weight"_a, "lanes"_a,
          "isa"_a = "")
      .def(
          "run",
          [](const NormOp& op, Address x, std::size_t block_rows, std::size_t block_stride, Address weight,
             Address out, std::size_t rows) {
            const NormTask task{op.shape,        op.rows(x, block_rows, op.shape.width, block_stride),
                                nullptr,         nullptr,
                                pointer(weight), pointer(out)};
            compute(rows, op.shape.width,
                    [&](std::size_t first, std::size_t last) { op.functions.norm(task, first, last); });
          },
          "x_ptr"_a, "block_rows"_a, "block_stride"_a, "weight_ptr"_a, "out_ptr"_a, "rows"_a,
          "x in blocks of so many rows, whose beginnings are block_stride numbers apart; weight_ptr 0 for "
          "none.")
      .def(
          "add",
          [](const NormOp& op, Address x, Address added, Address sum, Address weight, Address out,
             std::size_t rows) {
            const std::size_t width = op.shape.width;
            const NormTask task{op.shape,        op.rows(x, 1, width, width),
                                pointer(added),  pointer(sum),
                                pointer(weight), pointer(out)};
            compute(rows, width,
                    [&](std::size_t first, std::size_t last) { op.functions.norm(task, first, last); });
          },
          "x_ptr"_a, "added_ptr"_a, "sum_ptr"_a, "weight_ptr"_a, "out_ptr"_a, "rows"_a,
          "The same of x + added, which is written too; all of dense rows.");

  nb::class_<RotaryOp>(
      m, "Rotary", nb::is_final(),
      R"(x cos + rotated(x) sin over the first `rotated` numbers of each head; the others are copied.

pairs: neighbours are rotated into each other, else halves; half_tables: with one number of a table for both.
interleaved: the halves alternate in x, and are contiguous in the result. wide: only the sum is
rounded, else both products are, too. wide_tables: cos and sin are float32, and so all is.)")
      .def(
          "__init__",
          [](RotaryOp* self, const std::string& dtype, std::size_t heads, std::size_t head_dim,
             std::size_t rotated, bool pairs, bool interleaved, bool half_tables, bool wide, bool wide_tables,
             const std::string& isa) {
            if (interleaved && rotated > kMostInterleaved) {
              throw nb::value_error("heads are too large to be sorted");
            }
            if (heads == 0 || rotated > head_dim || rotated % 2 != 0) {
              throw nb::value_error("heads are rotated by an even number of their dimensions");
            }
            new (self) RotaryOp(
                dtype, {heads, head_dim, rotated, pairs, interleaved, half_tables, wide, wide_tables}, isa);
          },
          "dtype"_a, "heads"_a, "head_dim"_a, "rotated"_a, "pairs"_a, "interleaved"_a, "half_tables"_a,
          "wide"_a, "wide_tables"_a, "isa"_a = "")
      .def(
          "run",
          [](const RotaryOp& op, Address x, std::size_t head_stride, std::size_t row_stride, Address cos,
             Address sin, std::size_t table_stride, Address out, std::size_t rows) {
            const RotaryShape& shape = op.shape;
            const std::size_t table = table_stride * (shape.wide_tables ? sizeof(float) : op.size);
            const RotaryTask task{shape,        op.rows(x, shape.heads, head_stride, row_stride),
                                  pointer(cos), pointer(sin),
                                  table,        pointer(out)};
            compute(rows, shape.heads * shape.head_dim,
                    [&](std::size_t first, std::size_t last) { op.functions.rotary(task, first, last); });
          },
          "x_ptr"_a, "head_stride"_a, "row_stride"_a, "cos_ptr"_a, "sin_ptr"_a, "table_stride"_a, "out_ptr"_a,
          "rows"_a, "x [rows, heads, head_dim] with these strides, in numbers; out is dense.");

  nb::class_<Native>(m, "Rowwise", nb::is_final(), "What needs to know of rows no more than their dtype.")
      .def(nb::init<const std::string&, const std::string&>(), "dtype"_a, "isa"_a = "")
      .def(
          "gate",
          [](const Native& op, Address table, Address gate, std::size_t gate_stride, Address up,
             std::size_t up_stride, Address out, std::size_t rows, std::size_t width) {
            if (op.functions.gate == nullptr) throw nb::value_error("activations of float32 have no table");
            const GateTask task{pointer<const std::uint16_t>(table), width, op.rows(gate, 1, 0, gate_stride),
                                op.rows(up, 1, 0, up_stride), pointer(out)};
            compute(rows, width,
                    [&](std::size_t first, std::size_t last) { op.functions.gate(task, first, last); });
          },
          "table_ptr"_a, "gate_ptr"_a, "gate_stride"_a, "up_ptr"_a, "up_stride"_a, "out_ptr"_a, "rows"_a,
          "width"_a, "table[gate] x up for dtypes of 16 bits: table_ptr has a number for each of 65,536.")
      .def(
          "choose",
          [](const Native& op, Address x, Address out, std::size_t rows, std::size_t width) {
            if (width == 0) throw nb::value_error("there is nothing to choose from");
            const ChoiceTask task{width, pointer(x), pointer<std::int64_t>(out)};
            compute(rows, width,
                    [&](std::size_t first, std::size_t last) { op.functions.choice(task, first, last); });
          },
          "x_ptr"_a, "out_ptr"_a, "rows"_a, "width"_a,
          "int64 out[i]: where row i's first largest number is, of a row with a NaN the first NaN.");

  nb::class_<ProductOp>(
      m, "Product", nb::is_final(),
      R"(x weight^T + bias for bfloat16, with a weight in panels of PANEL outputs and as many inputs a step:
[outputs / 32, inputs / 32, 2, 16 pairs of inputs, 16 outputs, 2].

ValueError where the instruction set has none, since a library's are as good. isa: as of an AttentionWorker.)")
      .def(
          "__init__",
          [](ProductOp* self, const std::string& isa) {
            const Product* product = product_for(attention::choose_isa(isa));
            if (product == nullptr) throw nb::value_error("a library's products are as good here");
            new (self) ProductOp{product};
          },
          "isa"_a = "")
      .def_prop_ro_static("PANEL", [](nb::handle) { return kPanel; })
      .def(
          "run",
          [](const ProductOp& op, Address x, std::size_t stride, Address panels, Address bias, Address out,
             std::size_t rows, std::size_t inputs, std::size_t outputs) {
            if (inputs % kPanel != 0 || outputs % kPanel != 0) {
              throw nb::value_error("inputs and outputs are multiples of 32");
            }
            if (rows == 0) return;
            const Matrix matrix{pointer<const BFloat16>(panels), pointer<const BFloat16>(bias), inputs,
                                outputs};
            nb::gil_scoped_release released;
            multiply(*op.product, matrix, pointer<const BFloat16>(x), stride, rows, pointer<BFloat16>(out));
          },
          "x_ptr"_a, "stride"_a, "panels_ptr"_a, "bias_ptr"_a, "out_ptr"_a, "rows"_a, "inputs"_a, "outputs"_a,
          "Rows of x are stride numbers apart; bias_ptr 0 for none; out is dense.");
}

}  // namespace lamina
