#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <string>
#include <system_error>

#include "fhbn/errors.hpp"
#include "fhbn/rdma/writer.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;

namespace lamina {

namespace {

// Raised as a Python error of the same meaning.
nb::object new_error(nb::module_& m, const char* name, const char* doc, nb::tuple bases) {
  const std::string qualified = nb::cast<std::string>(m.attr("__name__")) + "." + name;
  nb::object type = nb::steal(PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr));
  m.attr(name) = type;
  return type;
}

struct Errors {
  PyObject* base;
  PyObject* lost;
  PyObject* closed;
  PyObject* timeout;
  PyObject* corrupted;
  PyObject* nic;
};

void translate(const std::exception_ptr& thrown, void* payload) {
  const auto& errors = *static_cast<const Errors*>(payload);
  try {
    std::rethrow_exception(thrown);
  } catch (const fhbn::PeerLost& error) {
    PyErr_SetString(errors.lost, error.what());
  } catch (const fhbn::ChannelClosed& error) {
    PyErr_SetString(errors.closed, error.what());
  } catch (const fhbn::DeadlinePassed& error) {
    PyErr_SetString(errors.timeout, error.what());
  } catch (const fhbn::Corrupted& error) {
    PyErr_SetString(errors.corrupted, error.what());
  } catch (const fhbn::rdma::NicError& error) {
    PyErr_SetString(errors.nic, error.what());
  } catch (const fhbn::ChannelError& error) {
    PyErr_SetString(errors.base, error.what());
  } catch (const std::system_error& error) {
    nb::object arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

}  // namespace

void bind_fhbn_errors(nb::module_& m) {
  static Errors errors;  // the module is never unloaded
  const nb::handle os_timeout = PyExc_TimeoutError;
  nb::object base = new_error(m, "ChannelError", "A channel cannot do what was asked.",
                              nb::make_tuple(nb::handle(PyExc_RuntimeError)));
  errors.base = base.ptr();
  errors.lost =
      new_error(m, "PeerLostError", "The peer has ended without closing its end.", nb::make_tuple(base))
          .ptr();
  errors.closed =
      new_error(m, "ChannelClosedError", "One of the ends was closed.", nb::make_tuple(base)).ptr();
  errors.timeout = new_error(m, "ChannelTimeoutError",
                             "Nothing happened in time; the channel is as it was before the call.",
                             nb::make_tuple(base, os_timeout))
                       .ptr();
  errors.corrupted = new_error(m, "ChannelCorruptedError",
                               "The peer has written what no peer of ours writes.", nb::make_tuple(base))
                         .ptr();
  errors.nic =
      new_error(m, "NicError", "A NIC has given up; the channel can be opened again.", nb::make_tuple(base))
          .ptr();
  nb::register_exception_translator(translate, &errors);
}

}  // namespace lamina
