// What a `with` statement enters and leaves. Python runs handlers of signals between two lines of
// Python, and they may raise. If a line of Python stood between the native scope and the `with`
// statement, the scope would stay open then, and the program would not know.
#include "bindings/bindings.h"

#include <cstddef>
#include <structmember.h>

namespace tracehook::bindings {

namespace {

struct Entered {
    PyObject_HEAD PyObject* begin; // called with `graph`
    PyObject* end;    // returns the segments that were touched, or None if nothing is to be done
    PyObject* finish; // called with these, and the exception that leaves the scope; or None of both
    PyObject* graph;
};

constexpr std::array kHeld{&Entered::begin, &Entered::end, &Entered::finish, &Entered::graph};

Entered& of(PyObject* self) {
    return *reinterpret_cast<Entered*>(self);
}

int make(PyObject* self, PyObject* arguments, PyObject*) {
    std::array<PyObject*, kHeld.size()> given{};
    if (PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3]) == 0) {
        return -1;
    }
    for (std::size_t i = 0; i < kHeld.size(); ++i) {
        Py_INCREF(given[i]);
        Py_XSETREF(of(self).*kHeld[i], given[i]);
    }
    return 0;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    for (const auto member : kHeld) {
        Py_VISIT(of(self).*member);
    }
    return 0;
}

int clear(PyObject* self) {
    for (const auto member : kHeld) {
        Py_CLEAR(of(self).*member);
    }
    return 0;
}

void destroy(PyObject* self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    PyTypeObject* const type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

bool is_made(PyObject* self) {
    if (of(self).graph == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "this scope was not initialised");
        return false;
    }
    return true;
}

PyObject* enter(PyObject* self, PyObject*) {
    return is_made(self) ? PyObject_CallFunctionObjArgs(of(self).begin, of(self).graph, nullptr)
                         : nullptr;
}

PyObject* finish(PyObject* self, PyObject* touched, PyObject* error) {
    const auto done = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(of(self).finish, touched, error, nullptr));
    return done ? py::none().release().ptr() : nullptr;
}

PyObject* leave(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "expected what a `with` statement passes");
        return nullptr;
    }
    if (!is_made(self)) {
        return nullptr;
    }
    PyObject* const error = arguments[1];
    const auto touched =
        py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(of(self).end, nullptr));
    if (touched) {
        const bool is_all = touched.is_none() && error == Py_None;
        return is_all ? py::none().release().ptr() : finish(self, touched.ptr(), error);
    }
    if (PyErr_ExceptionMatches(PyExc_RuntimeError) == 0) {
        return nullptr;
    }
    // Out of order: the other ranks must not wait for its registrations.
    py::error_already_set problem;
    if (const auto told = py::reinterpret_steal<py::object>(
            finish(self, Py_None, error != Py_None ? error : problem.value().ptr()))) {
        problem.restore();
    }
    return nullptr;
}

} // namespace

void bind_entered(py::module_& module) {
    static std::array<PyMethodDef, 3> methods{{
        {"__enter__", &enter, METH_NOARGS, nullptr},
        {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&leave)), METH_FASTCALL,
         nullptr},
        {nullptr, nullptr, 0, nullptr},
    }};
    static std::array<PyMemberDef, 3> members{{
        {"_begin", T_OBJECT_EX, offsetof(Entered, begin), READONLY, nullptr},
        {"_graph", T_OBJECT_EX, offsetof(Entered, graph), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    }};
    static std::array<PyType_Slot, 7> slots{{
        {Py_tp_init, reinterpret_cast<void*>(&make)},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
        {Py_tp_methods, methods.data()},
        {Py_tp_members, members.data()},
        {0, nullptr},
    }};
    static PyType_Spec spec{"tracehook._core.Entered", sizeof(Entered), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                            slots.data()};
    module.attr("Entered") = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
}

} // namespace tracehook::bindings
