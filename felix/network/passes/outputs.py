"""A network of one output returns it as it is: taking it out of a tuple costs each call 2 us."""

from __future__ import annotations

import tvm
from tvm import relax

from felix.frontend.rewriting import bindings


@tvm.transform.module_pass(opt_level=0, name="BareOutput")
class Bare:
    """The pass, over a network without dataflow blocks."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module whose `main` returns its only output; as it is if there are several."""
        main = mod["main"]
        result = main.body.body
        made = [each for each in bindings(main) if each.var.same_as(result)]
        if not (made and isinstance(made[0].value, relax.Tuple) and len(made[0].value) == 1):
            return mod
        (output,) = made[0].value
        blocks = [
            relax.BindingBlock([each for each in block.bindings if not each.same_as(made[0])])
            for block in main.body.blocks
        ]
        body = relax.SeqExpr(blocks, output)
        bare = relax.Function(list(main.params), body, output.ty, main.is_pure, main.attrs)
        mod = mod.clone()
        mod.update_func(mod.get_global_var("main"), bare)
        return mod
