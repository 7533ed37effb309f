"""How silos, coordinator and operators get certificates and a place in the signed roster."""
